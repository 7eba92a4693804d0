"""Out and back: models in the formats of other programs, checked by those programs."""

from tinylm.interop.exporting import ExportResult as ExportResult
from tinylm.interop.exporting import export as export
from tinylm.interop.importing import ImportResult as ImportResult
from tinylm.interop.importing import import_model as import_model
