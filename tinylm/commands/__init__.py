"""The commands, a file each; none of them loads torch before it runs."""

from tinylm.commands.audit import AUDIT
from tinylm.commands.command import Command
from tinylm.commands.corpus import CORPUS_BUILD, CORPUS_SHOW
from tinylm.commands.evaluate import EVALUATE
from tinylm.commands.export import EXPORT
from tinylm.commands.generate import GENERATE
from tinylm.commands.import_model import IMPORT
from tinylm.commands.plan import PLAN
from tinylm.commands.quickstart import QUICKSTART
from tinylm.commands.serve import SERVE
from tinylm.commands.train import TRAIN

COMMANDS: dict[str, Command] = {
    "quickstart": QUICKSTART,
    "corpus build": CORPUS_BUILD,
    "corpus show": CORPUS_SHOW,
    "train": TRAIN,
    "evaluate": EVALUATE,
    "generate": GENERATE,
    "serve": SERVE,
    "audit": AUDIT,
    "export": EXPORT,
    "import": IMPORT,
    "plan": PLAN,
}
