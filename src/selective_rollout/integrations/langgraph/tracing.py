"""What tracers see of a group: one run named after it, and its rollouts as that run's children.

LangSmith, and any callback handler that follows LangChain's runs, so shows a group as one tree. G copies of
an agent send G times the data; `Trace` says how much of it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, nullcontext
from typing import Any, Literal, TypeAlias

from langchain_core.callbacks import AsyncCallbackManagerForChainRun, BaseCallbackHandler
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import (
    get_async_callback_manager_for_config,
    merge_configs,
    var_child_runnable_config,
)
from langsmith.run_helpers import tracing_context

from selective_rollout.engine.survivor import survivor_order

Trace: TypeAlias = Literal["all", "survivor", "off"]
"""Which rollouts the caller's callbacks and LangSmith hear of: all; the one that is first in the order of
survivors, whatever becomes of it; or none, and not of the group either."""


class GroupTracing:
    """The runs of one group.

    Args:
        trace: which rollouts are heard of.
        group_id: names the run.
        size: rollouts of the group.
        config: the caller's, with its callbacks, tags and metadata.
    """

    def __init__(self, trace: Trace, group_id: str, size: int, config: RunnableConfig | None) -> None:
        self._trace = trace
        self._group_id = group_id
        self._first = survivor_order(group_id, size)[0]
        self._config = config or {}
        self._run: AsyncCallbackManagerForChainRun | None = None

    @asynccontextmanager
    async def group(self, input: Any) -> AsyncIterator[dict[str, Any]]:
        """The group's run, from here to the end of the block, which fills in what it puts out.

        The block is a run of its own, also in a node of another graph: what that hands down, its callbacks
        and the place of its checkpoints, ends here.
        """
        outside = var_child_runnable_config.set(None)
        try:
            output: dict[str, Any] = {}
            if self._trace == "off":
                yield output
                return
            manager = get_async_callback_manager_for_config(self._config)
            manager.add_tags(["selective-rollout"])
            manager.add_metadata({"sr_group": self._group_id})
            self._run = await manager.on_chain_start(
                None,
                {"input": input},
                name=self._config.get("run_name") or "rollout group",
                run_id=self._config.get("run_id"),
            )
            try:
                yield output
            except BaseException as error:
                await self._run.on_chain_error(error)
                raise
            await self._run.on_chain_end(output)
        finally:
            var_child_runnable_config.reset(outside)

    @contextmanager
    def rollout(
        self, config: RunnableConfig, rollout: int, handlers: Sequence[BaseCallbackHandler]
    ) -> Iterator[RunnableConfig]:
        """One rollout's run, for the calling task.

        Args:
            config: the rollout's, whose callbacks are those of the caller.
            rollout: its index.
            handlers: always told, whatever is traced.

        Yields:
            The config with its place below the group's run, or with nobody told but `handlers`.
        """
        is_heard = self._run is not None and (self._trace == "all" or rollout == self._first)
        heard = self._run.get_child() if self._run is not None and is_heard else None
        own: RunnableConfig = {"run_name": f"rollout {rollout}", "callbacks": list(handlers)}
        with nullcontext() if is_heard else tracing_context(enabled=False):
            yield merge_configs({**config, "callbacks": heard}, own)
