"""Calls of the hooks of a mode, and what a mode may not do: errors name the mode, the request and the rule."""

from __future__ import annotations

from collections.abc import Callable

from boundary.errors import Failure, InputError
from vidur_pd.config.own_classes import FAULTS, describe, is_of_the_package
from vidur_pd.kv.transfer.modes.mode import Transfer, TransferMode

Hook = Callable[[Transfer], None]


class ModeError(InputError):
    """A mode of KV transfers has broken its contract; the message says which rule, in one line."""


class ModeCalls:
    """A mode as the hand-over calls it."""

    def __init__(self, name: str, mode: TransferMode) -> None:
        self._name = name.rpartition("/")[2]
        self._mode = mode

    @property
    def hears_launches(self) -> bool:
        """The mode has a hook for iterations of prefill instances."""
        return type(self._mode).on_launched is not TransferMode.on_launched

    def on_routed(self, transfer: Transfer) -> None:
        self._call(self._mode.on_routed, transfer)

    def on_launched(self, transfer: Transfer) -> None:
        self._call(self._mode.on_launched, transfer)

    def on_prefilled(self, transfer: Transfer) -> None:
        self._call(self._mode.on_prefilled, transfer)

    def on_room(self, transfer: Transfer) -> None:
        self._call(self._mode.on_room, transfer)

    def check_send(self, transfer: Transfer, until_tokens: int) -> None:
        """Raises: ModeError, for KV that nobody has computed or that has no place."""
        if not isinstance(until_tokens, int):
            raise self._error(transfer, f"sends KV up to token {until_tokens!r}, expected a whole number of tokens")
        if not transfer.has_room:
            raise self._error(transfer, "sends KV to a decode rank that holds no blocks for it, expected has_room")
        if not 0 <= until_tokens <= transfer.launched_tokens:
            found, most = f"sends KV up to token {until_tokens}", transfer.launched_tokens
            raise self._error(transfer, f"{found}, expected 0 to {most}, which are computed or in computation")

    def check_progress(self, transfer: Transfer, *, is_reserved: bool, is_under_way: bool) -> None:
        """Raises: ModeError, for a prefilled request that waits for the mode while nothing else will happen."""
        if not transfer.is_prefilled or is_under_way:
            return
        if not is_reserved:
            raise self._error(transfer, "has reserved no blocks, expected reserve() once the prompt is computed")
        if transfer.has_room:
            found, whole = f"has sent KV up to token {transfer.sent_tokens}", transfer.context_tokens
            raise self._error(transfer, f"{found} and does not go on, expected send({whole}) once there is room")

    def _call(self, hook: Hook, transfer: Transfer) -> None:
        try:
            hook(transfer)
        except (Failure, InputError):
            raise
        except FAULTS as error:
            if isinstance(error, AssertionError) and is_of_the_package(error):
                raise
            raise self._error(transfer, f"{hook.__name__} raised {describe(error)}") from error

    def _error(self, transfer: Transfer, rule: str) -> ModeError:
        return ModeError(f"kv_transfer.mode {self._name}: request {transfer.request.request_id}: {rule}")
