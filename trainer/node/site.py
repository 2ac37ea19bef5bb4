"""Where agents run: what the nodes of a cluster have in common. Pure."""

from __future__ import annotations

from pydantic import Field

from trainer.core.record import Record
from trainer.node.heartbeat import AGENT_SILENCE_S


class Site(Record):
    """The machines of a cluster's nodes, as a runtime knows them. The defaults are those of a container.

    Attributes:
        data, code: the directories of datasets and of users' components.
        checkpoints: a directory with one of each run, by its key.
        console: the directory of the nodes' logs. Empty: ranks write to the output of their agent, which a
            container engine keeps.
        interface: the network interface of the ranks. Empty: the one on the route to the first node.
        mpirun: the command that starts one process on each node's rank slot, up to what it starts. Empty:
            Open MPI over ssh.
        seen: files that a node must see, by path, with the digest of their content.
        downloads: a directory for the files of the dataset, if `data` does not have them. Empty: none.
        downloads_option: the option of the runtime that names this directory. Empty: it has none.
        silence_s: the longest silence of an agent, in seconds.
        variables: of the environment of each rank.
    """

    data: str = "/data"
    code: str = "/code"
    checkpoints: str = "/checkpoints"
    console: str = ""
    interface: str = "eth0"
    mpirun: list[str] = Field(default_factory=list)
    seen: dict[str, str] = Field(default_factory=dict)
    downloads: str = ""
    downloads_option: str = ""
    silence_s: float = AGENT_SILENCE_S
    variables: dict[str, str] = Field(default_factory=dict)

    @property
    def place(self) -> str:
        """What the ranks of a node end with."""
        return "agent" if self.console else "container"


class Plan(Record):
    """What `python -m trainer.node lead` leads.

    Attributes:
        count: the number of nodes.
        agent: the command of the agent on each of them; {number} in it is the node's, from 0.
        launcher: the command of an agent that starts mpirun; empty if there is none.
        channel: the directory of the files through which requests come; empty: they come through pipes.
    """

    count: int
    agent: list[str]
    launcher: list[str] = Field(default_factory=list)
    channel: str = ""


CONTAINERS = Site()
