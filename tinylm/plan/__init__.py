"""What a bigger run will need, before it is paid for: memory, time, traffic, disk.

Arithmetic over shapes; torch is loaded only to measure this machine.
"""

from tinylm.plan.advice import advice
from tinylm.plan.memory import memory
from tinylm.plan.predict import Prediction, StepTime, predict
from tinylm.plan.words import amount, duration

__all__ = ["Prediction", "StepTime", "advice", "amount", "duration", "memory", "predict"]
