"""Messages as readable YAML: Envoy's own field names, and comments that say why."""

from __future__ import annotations

import betterproto2
import yaml


def render(message: betterproto2.Message, form: str) -> str:
    """Return the YAML of a message under a header that says where it comes from."""
    fields = message.to_dict(casing=betterproto2.Casing.SNAKE)
    return yaml.safe_dump(fields, sort_keys=False, width=100, allow_unicode=True)
