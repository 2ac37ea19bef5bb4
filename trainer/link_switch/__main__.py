"""Entry point of the containers that make links: `python -m trainer.link_switch ROLE`.

run                    be the switch
plug ADDRESS PEER …    connect the container with ADDRESS, whose network namespace this one shares, to it
setup JSON             set the links of the next run (control.Setup), in the container of the switch
stats                  print what the switch has done for the run, as JSON
"""

from __future__ import annotations

import sys

from pydantic import ValidationError

from trainer.core.record import first_error
from trainer.link_switch import tun
from trainer.link_switch.control import Plug, Setup, Stats, SwitchError, ask
from trainer.link_switch.server import Switch


def main(arguments: list[str]) -> int:
    """Run one role. Returns the exit code."""
    try:
        match arguments:
            case ["run"]:
                Switch().run()
            case ["plug", address, *peers]:
                _plug(address, peers)
            case ["setup", text]:
                ask(Setup.model_validate_json(text))
            case ["stats"]:
                print(ask(Stats()).model_dump_json())
            case _:
                print("usage: python -m trainer.link_switch run|plug|setup|stats", file=sys.stderr)
                return 2
    except SwitchError as error:
        print(f"links: {error}", file=sys.stderr)
        return 1
    except ValidationError as error:
        print(f"links: {first_error(error)}", file=sys.stderr)
        return 1
    return 0


def _plug(address: str, peers: list[str]) -> None:
    """Connect a container. Its packets pass the switch once all containers are connected."""
    try:
        device = tun.create()
        ask(Plug(address=address), [device])
        tun.route(peers)
    except OSError as error:
        raise SwitchError(f"no TUN device: {error.strerror}: {error.filename or tun.DEVICE}") from None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
