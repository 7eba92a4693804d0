"""Every option, as dataclasses without torch. The command line is generated from them.

`problems()` of a configuration lists everything that is wrong with it; `check()` raises ConfigError
with all of them at once.
"""

from tinylm.config.audit import AuditConfig
from tinylm.config.checked import Checked, Device, Nothing, option
from tinylm.config.corpus import CorpusConfig
from tinylm.config.evaluate import EvaluateConfig
from tinylm.config.export import ExportConfig, Format, Kind
from tinylm.config.generate import GenerateConfig
from tinylm.config.model import (
    POLICIES,
    PRESETS,
    ModelConfig,
    Policy,
    flops_per_token,
    parameter_count,
    preset,
)
from tinylm.config.plan import PlanConfig
from tinylm.config.quickstart import QuickstartConfig
from tinylm.config.serve import ServeConfig
from tinylm.config.train import INEXACT, RESUMABLE, Precision, TrainConfig, read_run_config

__all__ = [
    "INEXACT",
    "POLICIES",
    "PRESETS",
    "RESUMABLE",
    "AuditConfig",
    "Checked",
    "CorpusConfig",
    "Device",
    "EvaluateConfig",
    "ExportConfig",
    "Format",
    "GenerateConfig",
    "Kind",
    "ModelConfig",
    "Nothing",
    "PlanConfig",
    "Policy",
    "Precision",
    "QuickstartConfig",
    "ServeConfig",
    "TrainConfig",
    "flops_per_token",
    "option",
    "parameter_count",
    "preset",
    "read_run_config",
]
