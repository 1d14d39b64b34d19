"""What must not be recorded: passwords, keys and tokens."""

from luthier.records.redaction.secrets import find_secret, redact, require_none
from luthier.records.redaction.streams import redact_output

__all__ = ["find_secret", "redact", "redact_output", "require_none"]
