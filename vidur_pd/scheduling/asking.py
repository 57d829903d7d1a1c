"""Asks policies in Python for the decisions of their ranks; what is wrong with one ends in one line."""

from __future__ import annotations

from collections.abc import Callable

from boundary.errors import InputError
from boundary.fields import Section
from vidur_pd._core import Decision, RankState, RankView
from vidur_pd.config.own_classes import FAULTS, describe
from vidur_pd.scheduling.policy import BrokenRule, Policy, RequestView


class AskedPolicy:
    """The policy of one rank, and the door between the two."""

    __slots__ = ("_decision", "_name", "_policy", "_state", "_view")

    def __init__(self, name: str, make: Callable[[], Policy], state: RankState, options: Section | None = None) -> None:
        """``options``: by default those that say nothing. Raises: InputError, where the policy cannot be made."""
        self._name = name.rpartition("/")[2]
        self._state = state
        self._view, self._decision = RankView(state), Decision(state)
        try:
            self._policy = make()
            self._policy.options = self._policy.Options() if options is None else options
            self._policy.begin(self._view)
        except FAULTS as error:
            raise InputError(self._line(error)) from error

    @property
    def has_work(self) -> bool:
        return self._state.has_work

    def decide(self, now_ps: int) -> None:
        """Decides the next iteration of the rank."""
        state = self._state
        state.open_decision(now_ps)
        self._ask()
        while state.asks_again():
            self._ask()

    def is_steady(self) -> bool:
        """Whether plain decodes go on without asking."""
        try:
            answer = self._policy.is_steady(self._view)
        except FAULTS as error:
            raise InputError(self._line(error)) from error
        if not isinstance(answer, bool):
            raise InputError(f"policy {self._name}: is_steady: found {answer!r}, expected True or False")
        return answer

    def refusal(self, request: RequestView) -> str | None:
        """Why the rank could never complete the request."""
        try:
            answer = self._policy.refusal(self._view, request)
        except FAULTS as error:
            raise InputError(self._line(error)) from error
        if answer is not None and not isinstance(answer, str):
            raise InputError(f"policy {self._name}: refusal: found {answer!r}, expected a reason or None")
        return answer

    def stands_still(self, place: str) -> InputError:
        """The rank has work, and nothing will ever happen on it."""
        view = self._view
        counts = f"{view.running_requests} running, {len(view.waiting)} waiting, {len(view.arrived)} with their KV here"
        return InputError(
            f"policy {self._name}: progress: found nothing to run on {place} ({counts}), "
            "expected a decision that runs something"
        )

    def _ask(self) -> None:
        try:
            answer = self._policy.decide(self._view, self._decision)
        except FAULTS as error:
            raise InputError(self._line(error)) from error
        if answer is not None:
            raise InputError(
                f"policy {self._name}: decision: decide returned {answer!r}, "
                "expected None: entries are made by decision.run and decision.preempt"
            )

    def _line(self, error: BaseException) -> str:
        if isinstance(error, InputError) and not isinstance(error, BrokenRule):
            return f"policy {self._name}: {error}"
        rule = "" if isinstance(error, BrokenRule) else "raises: "
        return f"policy {self._name}: {rule}{describe(error)}"
