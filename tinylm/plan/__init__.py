"""What a bigger run will need, before it is paid for: memory, time, traffic, disk.

Arithmetic over shapes; torch is loaded only to measure this machine.
"""

from tinylm.plan.advice import advice
from tinylm.plan.predict import Prediction, StepTime, predict

__all__ = ["Prediction", "StepTime", "advice", "predict"]
