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
from tinylm.config.model import POLICIES, PRESETS, ModelConfig, Policy, preset
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
    "Policy",
    "Precision",
    "QuickstartConfig",
    "ServeConfig",
    "TrainConfig",
    "option",
    "preset",
    "read_run_config",
]
