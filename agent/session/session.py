"""Session of one call: feeds the turn-taking machine, carries out its commands, re-arms its timer.

The only orchestrator. The machine decides (`agent/turn_taking/machine.py`); `Session._do` is the
one place where its commands are dispatched, to the caller's items (`user_items.py`) and to the
responses (`agent/session/response/controller.py`). `agent/realtime/protocol/` translates for
clients. Everything here runs on one event loop inside one TaskGroup that ends with the call, so
nothing outlives it.

A lost connection: the axis of the caller's audio has no gap, it counts what was received. The
agent's voice, as reference of the echo gate, counts from the client's return. What the machine
makes of the loss stands in `agent/turn_taking/connection_handlers.py`.

Which response comes next: the machine says only when one begins (`StartReply`). What it is like
stands here, as options and whether the client asked for it: `_response_options` and `_is_asked` of
the next one, which `_script` may give fixed words; `_unheard` of the current one, until it is
released; `_again` of one that speech cut before that, which begins anew where the speech was noise;
`_displaced` of one that waits behind an announcement.
"""

import asyncio
import contextlib
import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import languages
from agent.config.schema import AgentProfile
from agent.errors import ClientError, HalfsecError, SilentCallError, StageError
from agent.observability.agent_state import AgentStateReporter
from agent.session.api.conversation import (
    ConversationItems,
    FunctionOutput,
    Item,
    Message,
    open_calls_of,
)
from agent.session.api.ids import Identifiers
from agent.session.api.session_state import SessionState
from agent.session.api.settings import (
    AUTO_TRUNCATION,
    IgnoredField,
    ResponseOptions,
    SessionSettings,
)
from agent.session.context.chat_context import ChatContext
from agent.session.context.chat_messages import messages_of
from agent.session.context.condensing_scheduler import IdleCondensing
from agent.session.context.prefill_scheduler import IdlePrefill
from agent.session.ports.stage_ports import (
    ChatMessage,
    Condensed,
    ScoresMessageEnd,
    SpeechResult,
)
from agent.session.response.budget_actions import BudgetActions
from agent.session.response.controller import ResponseController
from agent.session.response.dependencies import (
    SessionOptions,
    SessionOutputs,
    SessionStages,
    SharedState,
)
from agent.session.response.handoff import MAX_HANDOFFS, TOO_MANY
from agent.session.response.items import ReplyItems
from agent.session.response.opening_clause import example_messages
from agent.session.response.scripted import Script
from agent.tools.offered import AgentTools, check_choice, check_names, tools_of
from agent.turn_taking import commands as cmd
from agent.turn_taking import events as ev
from agent.turn_taking.end_of_turn import TurnRules, asked_wait_ms, rules_of
from agent.turn_taking.machine import TurnTaking
from agent.turn_taking.tables import Agent, Caller
from latency_budget.account.budget import Budget
from latency_budget.account.marks import MarkName
from latency_budget.account.turn import SessionId, TurnId

from .api import client_events as ask
from .api import server_events as say
from .background_tools import BackgroundTools
from .deferred_requests import NOT_DEFERRED, DeferredRequests
from .item_operations import change_items, check_request, check_text, check_tools
from .spoken_voice import NO_VOICE, asked_voice, with_spoken_voice
from .transcription_options import transcription_options
from .user_items import UserItems
from .wait_notices import WaitNotices

STALL_NS: Final = 1_500_000_000
"""No audio for so long in mid-word: the caller was muted or lost. Shorter would end turns at a
network hiccup; longer is dead air."""

IDS_AHEAD: Final = 16
"""Ids that are skipped when a call is taken over: the other server may have given out some more
than it has recorded. Fewer could be used twice; more make longer ids, and nothing else."""

_PLAIN: Final = ResponseOptions()

NO_PROMPTS: Final = "The recognizer is on another server, which is sent the audio alone."
"""Why a prompt of the recognizer has no effect."""

_VOICED: Final = MarkName.CALLER_LAST_VOICED

REFUSALS: Final = {
    "conversation_already_has_active_response": (
        "A response is in progress; wait for response.done, or cancel it first."
    ),
    "response_cancel_not_active": "Cancellation failed: no response is in progress.",
    "input_audio_buffer_commit_empty": (
        "There is nothing to commit: nobody has spoken since the last turn was committed, which "
        "with turn detection the server does by itself."
    ),
}

NOT_BEGUN: Final = (
    "This response was cancelled before it began: it waited for the models of the call's next "
    "language."
)


def _is_silent(item: Item) -> bool:
    """True for a message that nobody has said: a system message, or one without words."""
    if not isinstance(item, Message):
        return False
    return item.role == "system" or not ((item.text or "").strip() or item.rounds)


class Session:
    """One call. `run` lasts as long as the call; `handle` takes the client's requests."""

    def __init__(
        self,
        session_id: SessionId,
        profile: AgentProfile,
        settings: SessionSettings,
        stages: SessionStages,
        options: SessionOptions,
        outputs: SessionOutputs,
        shared: SharedState,
    ) -> None:
        self.id = session_id
        self._ignored = settings.ignored
        """Fields of the first settings that have no effect, until the client is told of them."""
        self.settings = settings = settings.changed(ignored=())
        self.conversation = ConversationItems()
        self._profile = profile
        self._tools = AgentTools(stages.tools)
        self._num_handoffs = 0
        """Handoffs since the caller's last words."""
        self._on_agent = outputs.on_agent
        self._stages = stages = replace(stages, tools=self._tools)
        self._options = options
        self._shared = shared
        self._clock = shared.clock
        self._ears = stages.ears
        self._log = outputs.log
        self._notify = outputs.notify
        self._recording = outputs.recording
        self._ids = Identifiers(session_id)
        rules = self._rules_of(settings)
        self._machine = TurnTaking(rules)
        self._state = AgentStateReporter(self._machine, outputs.log, outputs.on_state)
        self._waits = WaitNotices(self._machine, shared.clock, self._state.stage, outputs.notify)
        examples = example_messages(profile)
        chat = stages.open_chat(settings.instructions, examples)
        if isinstance(chat, ScoresMessageEnd):
            chat.watch_message_end(self._on_message_end)
        self._context = ChatContext(chat, self.conversation, settings.instructions, examples)
        if settings.truncation != AUTO_TRUNCATION:
            self._context.truncation = settings.truncation
        tools = tools_of(settings, _PLAIN, stages.tools)
        self._context.tools = () if tools is None else tools.definitions
        self._prefill = IdlePrefill(self._context, self._may_prefill, self._refused_by_model)
        self._condensing = IdleCondensing(
            self._context,
            shared.clock,
            self._is_idle,
            self._condensed,
            shared.condensing_counts,
        )
        self._budget_actions = BudgetActions(
            shared.policy,
            shared.clock,
            outputs.log,
            stages.ears,
            chat,
            settings.turn_detection,
            self._prefill,
        )
        self._response_options = ResponseOptions()
        """Options of the next response."""
        self._script = Script()
        self._is_asked = False
        """The client asked for the next response."""
        self._displaced: tuple[ResponseOptions, bool] | None = None
        """Options of the response that waits behind an announcement, and whether it was asked
        for."""
        self._unheard: tuple[ResponseOptions, bool] | None = None
        """Options of the current response, and whether it was asked for, while nothing of it was
        heard."""
        self._again: tuple[ResponseOptions, bool] | None = None
        """Those of a response that speech cut before anything of it was heard. It begins anew where
        the speech has no words."""
        self._request_id: str | None = None
        """The client's event id of the request that the machine refuses."""
        self._rearm = asyncio.Event()
        self._user_items = UserItems(stages.ears, self._context, self._ids, outputs)
        self._items = ReplyItems(shared.clock, self._context, self._ids, outputs)
        self._group = asyncio.TaskGroup()
        self._deferred = DeferredRequests(self._group, self._take)
        self._is_running = False
        self._found_languages: set[str] = set()
        """Languages that the caller was found to speak."""
        self._taken_over: ev.CallTakenOver | None = None
        """The call began at another server."""
        self._background = BackgroundTools(
            self._group,
            stages.tools,
            self._context,
            self._ids,
            self._machine,
            shared.clock,
            notify=outputs.notify,
            feed=self.feed,
            awaits_request=lambda: self._responses.awaits_client,
            joined=self._prefill.changed,
            changed=outputs.on_background,
        )
        self._responses = ResponseController(
            self._group,
            stages,
            options,
            outputs,
            shared,
            context=self._context,
            prefill=self._prefill,
            items=self._items,
            budget_actions=self._budget_actions,
            emit=self.feed,
            synthesized=self._condensing.look,
            hand_off=self._hand_off,
            start_background=self._background.start,
            follow_up=self._answer_handoff,
        )
        self._log.budget = budget_of(settings, options.budget)
        self._log.event(ev.RulesChanged(rules), self._clock.now_ns(), self._machine.turn)

    async def run(self) -> None:
        """Serve the call until cancelled. Raises errors that are neither the client's nor a
        stage's, and SilentCallError after too long a silence; both in groups."""
        if self._taken_over is None:
            expires = self._options.expires_at_unix_s
            self._notify(say.SessionCreated(self.id, self.settings, expires))
            self._tell_ignored(self._ignored)
            self._tell_of_voice(self.settings.voice, "session")
            self._tell_of_language()
        try:
            self._tell_ignored(self._set_transcription(self.settings))
        except ClientError as error:
            self._complain(error)
        try:
            async with self._group as group:
                self._is_running = True
                group.create_task(self._ears.run(self._on_heard))
                group.create_task(self._keep_time())
                group.create_task(self._prefill.run())
                group.create_task(self._condensing.run())
                if not self.settings.transcribes_only:
                    self._prefill.changed()
                if self._taken_over is not None:
                    self.feed(self._taken_over)
                elif self._profile.greeting and not self.settings.transcribes_only:
                    self.say(self._profile.greeting)
        finally:
            self._waits.close()
            self._log.over.settle_all()
            await self._context.chat.close()

    async def handle(self, request: ask.Request, frame: int | None = 0) -> None:
        """Carry out a client's request; one that is refused becomes a `Problem` notice. A change
        whose models have to be loaded, and what waits behind it, is carried out later: see
        `deferred_requests.py`. `frame`: the client's frames before the one with this request, for
        `first_deferred`; None: it is not the client's."""
        if isinstance(request, ask.UpdateSession) and request.base is None:
            request = replace(request, base=self.settings)
        if isinstance(request, NOT_DEFERRED):
            await self._take(request)
        elif self._deferred.is_busy or self._needs_loading(request):
            await self._deferred.add(request, frame)
        else:
            await self._take(request)

    @property
    def first_deferred(self) -> int | None:
        """`frame` of the first request that was handled and is not done yet; None: all are done.
        Remains when `run` has ended before they were."""
        return self._deferred.first_frame

    def heard_items(self) -> tuple[Item, ...]:
        """Items of the conversation; of a reply in progress the words that were heard by now."""
        going = self._items.heard_so_far()
        items = tuple(self.conversation)
        if going is None:
            return items
        return tuple(going if item.id == going.id else item for item in items)

    # --- for the state store: another server goes on with the call ---

    def state(self) -> SessionState:
        """What another server needs to go on with the call.

        A response that has called a function of the client has no answer to give anew: with the
        results the client asks for another one.
        """
        machine = self._machine
        return SessionState(
            self.settings,
            tuple(self.conversation),
            *self._ids.counts,
            self._user_items.received_ms,
            self._context.summary,
            self._context.num_covered,
            machine.answer_due,
            machine.answers_caller and not self._responses.awaits_client,
            self._items.state(in_progress=machine.agent is not Agent.IDLE),
            self._background.state(is_unheard=self._is_unheard),
            self._items.earlier_states(),
            tuple(sorted(self._context.apart)),
            self._response_waits,
            self._context.has_dropped,
        )

    def restore(self, state: SessionState) -> None:
        """Go on with a call of another server, once, before `run`. The session was made with the
        state's settings. Its client is lost at first; `client_back` follows.

        A reply in progress, or still played, ends where it was heard, words of the caller that were
        not transcribed are lost, and so are tools that ran in the background. Raises ClientError
        for items that contradict each other.
        """
        for item in state.items:
            self.conversation.add(item)
        counts = state.num_items, state.num_replies, state.num_calls
        self._ids.skip(*(number + IDS_AHEAD for number in counts))
        self._user_items.origin_ms = state.audio_ms
        for each in state.earlier:
            self._items.restore(each, state.settings)
        is_heard = False  # a reply in progress that is not there has no word yet
        if state.reply is not None:
            is_heard = self._items.restore(state.reply, state.settings)
        for item in tuple(self.conversation):
            if isinstance(item, Message) and (item.text is None or item.status == "in_progress"):
                self.conversation.set_text(item.id, item.text or "", "incomplete", item.rounds)
        self._context.restore(
            state.summary, state.num_covered, state.apart, has_dropped=state.has_dropped
        )
        self._background.restore(state.background)
        is_due = state.answer_due or (state.answers_caller and not is_heard)
        is_due = is_due and self._has_question(is_due=state.answer_due)
        is_due = is_due or state.response_waits
        self._taken_over = ev.CallTakenOver(is_due, self._caller_has_spoken())

    @property
    def _response_waits(self) -> bool:
        """True while a response waits whose words are the model's, behind another one or for the
        client, and nothing that it answers is missing."""
        is_scripted = self._script.announces or self._script.next is not None
        hands_off = self._machine.agent is not Agent.IDLE and self._responses.hands_off
        waits = (self._machine.is_asked and not is_scripted) or hands_off
        return (waits or self._displaced is not None) and not self._machine.awaits_transcript

    def _has_question(self, *, is_due: bool) -> bool:
        """True if the conversation ends with something to answer, but for items without words and
        system messages.

        While the client runs a tool that this question needs, it asks for the answer itself, behind
        the last result. `is_due`: a response waits to begin all the same.
        """
        newest_first = [each for each in reversed(self.conversation) if not _is_silent(each)]
        since = itertools.takewhile(
            lambda each: not (isinstance(each, Message) and each.role == "user"), newest_first
        )
        if newest_first and not isinstance(newest_first[0], Message):
            open_calls = open_calls_of(reversed(tuple(since)))
            if open_calls or isinstance(newest_first[0], FunctionOutput):
                return is_due or not open_calls
        roles = [each.role for each in messages_of(self.conversation) if each.role != "system"]
        return roles[-1:] in (["user"], ["tool"])

    # --- for the transport: announcements, and a connection that is lost ---

    def say(self, text: str) -> None:
        """Begin a response of these words now; one in progress ends as it is, and one that waits
        to begin follows. For announcements, which may neither wait for the model nor be interrupted
        by its words. They wait for a transcript, and for a client whose connection is lost."""
        machine = self._machine
        if machine.is_asked and not self._script.announces:
            self._displaced = self._response_options, self._is_asked
        if not machine.is_asked:
            self._script.next = None
        self._response_options, self._is_asked = ResponseOptions(), False
        self._script.announce(text)
        if machine.agent is Agent.HELD or not machine.takes_requests:
            if machine.agent is not Agent.IDLE:
                if self._is_unheard:
                    self._background.unheard(machine.turn)
                if self._responses.takes_handoff():
                    self._displaced = self._displaced or (ResponseOptions(), True)
            self.feed(ev.ReplyCancelled())  # begins the announcement where a response waits
            if self._script.announces and machine.is_asked:
                self.feed(ev.ReplyCancelled())  # it waits for a transcript
        if self._script.announces:
            self.feed(ev.ReplyRequested())

    async def wait_played(self) -> bool:
        """Wait until all that the newest response has said so far will have been played, by what
        was sent when; the carrier knows what is still on its way. False: it has said nothing.
        Returns at once, or never, for a response that was cut."""
        run = self._responses.current
        if run is None or not run.reply.text.strip():
            return False
        await run.synthesized()
        while True:
            now_ns = self._clock.now_ns()
            left_ns = run.reply.playback.lasts_until_ns(now_ns) - now_ns
            if left_ns <= 0:
                return True
            await asyncio.sleep(left_ns / 1e9)

    @property
    def will_answer(self) -> bool:
        """True if a response begins when a lost client is back, or soon after."""
        return self._machine.is_asked

    def client_lost(self) -> None:
        """The connection broke. Record what was heard of the response that broke off."""
        unheard = True
        run = self._responses.current
        if run is not None:
            run.reply.playback.client_lost(self._clock.now_ns())
            run.reply.claims.close()
            is_silent = not self._items.stands(run.reply)[0].strip()
            unheard = is_silent and not run.reply.has_called  # else the client asks for the answer
        if self._is_unheard:
            self._background.unheard(self._machine.turn)
        is_idle = self._machine.agent is Agent.IDLE
        hands_off = not is_idle and self._responses.takes_handoff()
        self.feed(ev.ClientLost(unheard))
        if hands_off:
            self._answer_handoff()
        self._log.over.settle_all()

    def client_back(self) -> None:
        """The client has a new connection. No latency is counted across the gap."""
        self._ears.resumed_ns = self._clock.now_ns()
        if self.will_answer and self._machine.caller is Caller.QUIET:
            # The caller has waited for the network, not for the answer.
            self._log.utterance_dropped()
            self._log.mark_next_turn(MarkName.ASKED, self._clock.now_ns())
        self.feed(ev.ClientBack())

    def feed(self, event: ev.Event, request_id: str | None = None) -> None:
        """Give the machine an event and carry out its commands. `request_id`: the client's event
        id, for a refusal."""
        now_ns = self._clock.now_ns()
        self._log.event(event, now_ns, self._machine.turn)
        before, self._request_id = self._request_id, request_id
        try:
            self._carry_out(self._machine.apply(event, now_ns), now_ns)
        finally:
            self._request_id = before

    # --- requests ---

    async def _take(self, request: ask.Request) -> None:
        """Carry out a request, or answer why not."""
        try:
            await self._dispatch(request)
        except (ClientError, StageError) as error:
            if not self._deferred.is_dropped(request):  # that has been answered
                self._complain(error, getattr(request, "event_id", None))

    async def _dispatch(self, request: ask.Request) -> None:
        if isinstance(request, ask.CreateResponse | ask.CreateItem):
            await check_request(
                request, self._context, self.settings, self._stages.tools, self._stages.open_voice
            )
        match request:
            case ask.AppendAudio(pcm, rate_hz):
                self._recording.caller(pcm, rate_hz, self._clock.now_ns())
                await self._ears.feed(pcm, rate_hz)
            case ask.UpdateSession():
                await self._update(request)
            case ask.CommitAudio(event_id):
                utterance = await self._ears.commit()
                self.feed(ev.BufferCommitted(utterance), event_id)
            case ask.ClearAudio(event_id):
                utterance = await self._ears.clear()
                self.feed(ev.BufferCleared(utterance), event_id)
                self._user_items.clear()
                self._notify(say.AudioCleared())
            case ask.CreateResponse() if self._deferred.is_dropped(request):
                pass  # cancelled during the check
            case ask.CreateResponse(options, event_id):
                self._require_running()
                self._create_response(options, event_id)
            case ask.CancelResponse():
                self._cancel_responses(request)
            case ask.PlaybackReport(item_id, played_ms):
                self._items.played(item_id, played_ms)
            case ask.DeleteItem(item_id, event_id) if self._items.is_held(item_id):
                self.feed(ev.ReplyCancelled(), event_id)  # nothing is left to go on with
                self._change_items(request)
            case _:
                self._change_items(request)

    def _change_items(self, request: ask.Request) -> None:
        change_items(
            request,
            self._context,
            self._items,
            self._ids,
            self._notify,
        )
        if isinstance(request, ask.CreateItem):
            self._tell_ignored(request.ignored)
            if isinstance(request.item, Message) and request.item.role == "user":
                self._caller_said()
        if isinstance(request, ask.CreateItem | ask.DeleteItem):
            self._prefill.changed()
            self._background.look()
            self._rearm.set()

    def _caller_said(self) -> None:
        self._num_handoffs = 0
        self._background.caller_said()

    def _cancel_responses(self, request: ask.CancelResponse) -> None:
        """Cancel the response in progress. One that waits to begin has no id yet: a request without
        one cancels it as well, and one with another's id, or that of a response which is over,
        cancels nothing."""
        run = self._responses.current
        named = request.response_id
        if named is not None and (
            run is None
            or run.reply.response_id != named
            or (run.reply.ended and run.reply.held_at is None)
        ):
            code = "response_cancel_not_active"
            self._complain(ClientError(REFUSALS[code], code=code), request.event_id)
            return
        dropped = [] if request.response_id is not None else self._deferred.drop_responses()
        for each in dropped:
            self._complain(ClientError(NOT_BEGUN, code="response_cancelled"), each.event_id)
        is_in_progress = self._machine.agent is Agent.HELD or not self._machine.takes_requests
        if is_in_progress or not dropped:
            self.feed(ev.ReplyCancelled(), request.event_id)
        if self._machine.takes_requests:
            self._response_options, self._is_asked = ResponseOptions(), False
            self._displaced = self._again = None
            self._script.drop_announcement()

    def _create_response(self, options: ResponseOptions, event_id: str | None) -> None:
        if options.ignored:
            self._tell_ignored(options.ignored)
            options = replace(options, ignored=())
        if options.voice is not None:
            self._tell_of_voice(options.voice, "response")
        follows_up = self._responses.awaits_client
        if self._machine.takes_requests or (follows_up and not self._machine.is_asked):
            self._response_options, self._script.next, self._is_asked = options, None, True
        if follows_up:
            self.feed(ev.FollowUpRequested(), event_id)
        else:
            self.feed(ev.ReplyRequested(self._caller_has_spoken()), event_id)

    def _caller_has_spoken(self) -> bool:
        """True if the conversation has a message of the caller's."""
        return any(isinstance(each, Message) and each.role == "user" for each in self.conversation)

    async def _update(self, request: ask.UpdateSession) -> None:
        """Raises ClientError, having changed nothing."""
        while True:
            old = self.settings
            if request.is_found and not old.finds_language:
                return
            settings = await self._checked(request.settings.rebased(request.base or old, old))
            if self.settings is old:  # no other agent took over in the meantime
                break
        # From here on nothing waits: it is done as a whole, or not at all.
        tools, old_tools = (tools_of(each, _PLAIN, self._tools) for each in (settings, old))
        ignored = settings.ignored
        if settings.transcription != old.transcription:
            ignored = (*ignored, *self._set_transcription(settings))
        self.settings = settings = settings.changed(ignored=())
        if settings.truncation != old.truncation:
            self._context.truncation = settings.truncation
            self._prefill.changed()
        if (settings.instructions, tools) != (old.instructions, old_tools):
            self._context.instructions = settings.instructions
            self._context.tools = () if tools is None else tools.definitions
            self._prefill.changed()
        if settings.finds_language and not old.finds_language:
            self._found_languages.clear()
        self._detect_anew(settings, old)
        self._log.budget = budget_of(settings, self._options.budget)
        self._notify(say.SessionUpdated(settings, is_found=request.is_found))
        self._tell_ignored(ignored)
        if settings.voice != old.voice:
            self._tell_of_voice(settings.voice, "session")
        if settings.language != old.language:
            self._tell_of_language()

    async def _checked(self, settings: SessionSettings) -> SessionSettings:
        """New settings with what follows from them: the language's own instructions, and its voice,
        whose models are loaded last. Raises ClientError."""
        old, own = self.settings, self._tools
        settings = self._with_instructions(settings)
        if settings.instructions != old.instructions:
            instructions = ChatMessage("system", settings.instructions)
            await check_text(self._context.chat, instructions, "session.instructions")
        if (settings.tools, settings.tool_choice) != (old.tools, old.tool_choice):
            check_choice(settings, _PLAIN, own, "session.tool_choice")
        tools, old_tools = (tools_of(each, _PLAIN, own) for each in (settings, old))
        if tools != old_tools:
            check_names(settings.tools, own, "session.tools")
            await check_tools(self._context.chat, tools, "session.tools")
        settings = await self._with_spoken_voice(settings)
        self._stages.open_voice(settings.voice, 24_000, 1.0)  # raises for an unknown voice
        return settings

    def _detect_anew(self, settings: SessionSettings, old: SessionSettings) -> None:
        """Take over the turn detection and the rules of the new settings, where they differ."""
        is_detecting_anew = (settings.turn_detection, settings.transcribes_only) != (
            old.turn_detection,
            old.transcribes_only,
        )
        if is_detecting_anew:
            if settings.turn_detection is not None:
                self._user_items.clear()  # the speech input forgets what was not committed
            self._budget_actions.detects(settings.turn_detection)
        rules = self._rules_of(settings)
        if is_detecting_anew or rules != self._rules_of(old):
            self.feed(ev.RulesChanged(rules))

    def _rules_of(self, settings: SessionSettings) -> TurnRules:
        options = self._options
        has_openers = options.early_openers and bool(options.sentences(settings.language).openers)
        return rules_of(settings, options.idle, ducks=options.ducks, has_openers=has_openers)

    # --- handoffs ---

    async def _hand_off(self, agent: str) -> str | None:
        """Let another agent take over, from the next response on. Returns None, or why the call
        stays with the present one, as text for the model."""
        if self._num_handoffs >= MAX_HANDOFFS:
            return TOO_MANY
        try:
            while True:
                asked = self.settings
                switch = await self._stages.switch_agent(agent, asked, self._profile)
                system = ChatMessage("system", switch.profile.instructions)
                await check_text(self._context.chat, system, "session.instructions")
                now = self.settings
                if (now.language, now.speaks) == (asked.language, asked.speaks):
                    break  # prompt and voice are of the call's language still
        except (ClientError, StageError) as error:
            return f"Error: {agent} can't take this call: {error.message}"
        # From here on nothing waits: it is done as a whole, or not at all.
        before = self.settings.agent
        settings = switch.applied(self.settings, self._profile)
        self._num_handoffs += 1
        self._profile, self._tools.current = switch.profile, switch.tools
        self.settings = settings
        tools = tools_of(settings, _PLAIN, self._tools)
        self._context.instructions = settings.instructions
        self._context.examples = tuple(example_messages(switch.profile))
        self._context.tools = () if tools is None else tools.definitions
        self._prefill.changed()
        # The turn whose response hands the call off stays that of the agent that began it.
        self._log.agent = agent
        self._log.budget = budget_of(settings, self._options.budget)
        self._on_agent(agent)
        self._notify(say.SessionUpdated(settings, is_handoff=True))
        self._notify(say.Extension("halfsec.handoff", {"from": before, "to": agent}))
        return None

    def _answer_handoff(self) -> None:
        """Ask for the first response of the agent that took over, behind the present one."""
        if not self._machine.is_asked:
            self._response_options, self._script.next = ResponseOptions(), None
            self._is_asked = True
            self.feed(ev.FollowUpRequested())

    def _announce_results(self) -> None:
        """Ask for a response to the results of tools in the background. It need not call any tool:
        one that had to would start the next, without end."""
        is_free = self.settings.tool_choice in ("auto", "none")
        self._response_options = ResponseOptions(tool_choice=None if is_free else "auto")
        self._script.next = None
        self._is_asked = True
        self.feed(ev.ReplyRequested())

    def _with_instructions(self, settings: SessionSettings) -> SessionSettings:
        """New settings with the agent's instructions for their language, unless the client has
        instructions of its own."""
        old, own = self.settings, self._options.instructions_in
        if own is None or settings.language == old.language:
            return settings
        if settings.instructions != own(old.language):
            return settings
        return settings.changed(instructions=own(settings.language))

    def _needs_loading(self, request: ask.Request) -> bool:
        """True for a change of the session whose models are not all loaded."""
        if not isinstance(request, ask.UpdateSession):
            return False
        old = self.settings
        settings = self._with_named_voice(request.settings.rebased(request.base or old, old))
        if self._is_spoken_as_before(settings):
            return False
        if settings.finds_language and not self._stages.is_prepared(languages.AUTO, NO_VOICE):
            return True
        return not self._stages.is_prepared(settings.language, asked_voice(settings))

    def _names_voice(self, settings: SessionSettings) -> bool:
        """True if new settings ask for another voice than the session's do."""
        old = self.settings
        return (settings.voice, settings.asked_voice) != (old.voice, old.asked_voice)

    def _with_named_voice(self, settings: SessionSettings) -> SessionSettings:
        """New settings in which a voice that they name takes the place of the one asked for."""
        return settings.changed(asked_voice="") if self._names_voice(settings) else settings

    def _is_spoken_as_before(self, settings: SessionSettings) -> bool:
        """True if new settings need no other models than the session's do."""
        old = self.settings
        is_same = (settings.language, settings.finds_language, settings.speaks) == (
            old.language,
            old.finds_language,
            old.speaks,
        )
        return is_same and not self._names_voice(settings)

    async def _with_spoken_voice(self, settings: SessionSettings) -> SessionSettings:
        """New settings with the voice of their language, whose models are loaded. Raises
        ClientError for a language that calls can't have here."""
        named, is_named = settings.voice, self._names_voice(settings)
        settings = self._with_named_voice(settings)
        if self._is_spoken_as_before(settings):
            return settings
        settings = await with_spoken_voice(self._stages.prepare_language, settings)
        if not is_named or settings.voice == named:
            return settings
        reason = (
            f"The voice {named!r} does not speak {settings.language!r}: {settings.voice!r} speaks "
            "in its place."
        )
        other = IgnoredField("session.audio.output.voice", reason)
        return settings.changed(ignored=(*settings.ignored, other))

    def _set_transcription(self, settings: SessionSettings) -> tuple[IgnoredField, ...]:
        """Give the speech input its language and prompt; returns what it has no use for. Raises
        ClientError, having changed nothing."""
        options = transcription_options(settings)
        if self._ears.set_transcription(options):
            return ()
        asked = settings.transcription or {}
        path = "session.audio.input.transcription"
        return tuple(
            IgnoredField(f"{path}.{name}", NO_PROMPTS)
            for name in ("prompt", "keywords")
            if asked.get(name)
        )

    def _tell_ignored(self, fields: Sequence[IgnoredField]) -> None:
        """Tell the client which of its fields have no effect."""
        for each in fields:
            told = {"param": each.param, "message": each.reason}
            self._notify(say.Extension("halfsec.notice", told))

    def _tell_of_voice(self, name: str, of: str) -> None:
        """Tell the client that another voice speaks than the one that it named."""
        speaking = self._stages.speaking_voice(name)
        if speaking != name:
            reason = f"There is no voice {name!r} here: {speaking!r} speaks in its place."
            self._tell_ignored([IgnoredField(f"{of}.audio.output.voice", reason)])

    def _tell_of_language(self) -> None:
        """Tell the client where not all of a call works in its language."""
        language = self.settings.language
        if not languages.is_complete(language):
            message = (
                f"In the language {language!r} there are recognition and a voice only: the "
                "service's own sentences, numbers and backchannels are not in it, and the end of a "
                "turn is judged by sound and silence."
            )
            told = {"param": "session.audio.input.transcription.language", "message": message}
            self._notify(say.Extension("halfsec.notice", told))

    def _tell_slowed(self, times: float) -> None:
        """Tell the client that its audio waits, and why."""
        message = (
            "The audio comes faster than it was spoken. Beside other callers it is heard "
            f"{times:g} times as fast as that."
        )
        told = {"param": "input_audio_buffer.append", "message": message}
        self._notify(say.Extension("halfsec.notice", told))

    def _complain(self, error: HalfsecError, event_id: str | None = None) -> None:
        """Answer with an error; `event_id`: the client's own, of the request at fault."""
        problem = say.Problem(error.message, error.code, error.error_type, error.param, event_id)
        self._notify(problem)

    # --- what the caller's audio brings ---

    def _on_heard(self, heard: SpeechResult) -> None:
        self._log.heard(heard, self._machine.turn)
        if heard.refused is not None:
            self._complain(heard.refused)
        if heard.slowed_to is not None:
            self._tell_slowed(heard.slowed_to)
        if heard.language:
            self._found_language(heard.language)
        if heard.partial is not None:
            text, stable_chars = heard.partial
            if text:
                self._user_items.partial(
                    heard.utterance,
                    text,
                    stable_chars,
                    is_push_to_talk=self.settings.turn_detection is None,
                )
                if self._options.previews and not self.settings.transcribes_only:
                    self._prefill.hears(text)
            if self._machine.checks_words:
                self.feed(ev.WordsHeard(heard.utterance, text))
        if isinstance(heard.event, ev.SpeechStarted):
            is_overlap = self._machine.agent not in (Agent.IDLE, Agent.PREPARING)
            self._budget_actions.speech_began(self._machine.turn, is_overlap=is_overlap)
            self._log.mark_next_turn(MarkName.SPEECH_STARTED, self._clock.now_ns())
        if heard.event is not None:
            self.feed(heard.event)

    def _found_language(self, code: str) -> None:
        """Go on in the language that the caller speaks, as if the client had asked for it. One that
        was refused is not asked for again."""
        if self.settings.finds_language and code not in self._found_languages:
            self._found_languages.add(code)
            found = self.settings.with_language(code)
            change = ask.UpdateSession(found, base=self.settings, is_found=True)
            self._group.create_task(self.handle(change, None))

    def _on_message_end(self, text: str, log_prob: float) -> None:
        """Take what the language model knows of the caller's newest words."""
        if math.isfinite(log_prob):  # what a damaged model says is no evidence
            self.feed(ev.MessageEndScored(self._machine.utterance, text, log_prob))

    async def _keep_time(self) -> None:
        """Fire the machine's timer, announce results of tools that went on in the background, and
        detect audio that stops in mid-word."""
        clock = self._clock
        while True:
            self._rearm.clear()
            now_ns = clock.now_ns()
            due_ns = self._machine.next_deadline_ns()
            if due_ns is not None and now_ns >= due_ns:
                self._log.timer(now_ns, self._machine.turn)
                self._carry_out(self._machine.on_timer(now_ns), now_ns)
                continue
            announce_ns = self._background.announce_at_ns
            if announce_ns is not None:
                if now_ns >= announce_ns:
                    self._announce_results()
                    continue
                due_ns = announce_ns if due_ns is None else min(due_ns, announce_ns)
            if self._machine.caller is Caller.SPEAKING:
                stalled_ns = self._ears.last_audio_ns + STALL_NS
                if now_ns >= stalled_ns:
                    self.feed(ev.AudioStalled(self._machine.utterance))
                    continue
                due_ns = stalled_ns if due_ns is None else min(due_ns, stalled_ns)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if due_ns is None else (due_ns - now_ns) / 1e9):
                    await self._rearm.wait()

    def _may_prefill(self) -> bool:
        """True while no response is being made and no final pass decides how long the caller
        waits."""
        is_made = self._machine.agent not in (Agent.IDLE, Agent.TRAILING)
        return not is_made and self._machine.caller is not Caller.PAUSING

    def _is_idle(self) -> bool:
        """True while no work for a turn is done or about to be: nobody speaks, and the response is
        over or only has to be played."""
        run, agent = self._responses.current, self._machine.agent
        plays = agent is Agent.SPEAKING and run is not None and run.is_synthesized
        is_over = agent in (Agent.IDLE, Agent.TRAILING)
        return (plays or is_over) and self._machine.caller is Caller.QUIET

    def _condensed(self, done: Condensed) -> None:
        """Tell of the summary that the model has in place of the oldest messages."""
        fields = {
            "summary": " ".join(done.summary),
            "messages": len(done.roles),
            "tokens_before": done.num_tokens_before,
            "tokens": done.num_tokens,
        }
        self._notify(say.Extension("halfsec.context", fields))
        tokens = (done.num_tokens_before, done.num_tokens)
        self._log.mark_next_turn(MarkName.LLM_CONDENSED, self._clock.now_ns(), tokens)
        if self._context.is_edited:
            self._prefill.changed()

    def _refused_by_model(self, refusal: StageError) -> None:
        """Send a refusal that no request caused, so without an event id."""
        self._notify(say.Problem(refusal.message, refusal.code, refusal.error_type))

    # --- commands ---

    def _carry_out(self, commands: tuple[cmd.Command, ...], now_ns: int) -> None:
        for command in commands:
            self._log.command(command, now_ns, self._machine.turn)
            self._do(command, now_ns)
        self._follow_announcement()
        self._rearm.set()
        self._background.look()
        self._prefill.go_on()
        self._condensing.look()
        self._state.look()
        self._waits.look()

    def _do(self, command: cmd.Command, now_ns: int) -> None:  # noqa: C901
        """Carry out one command: the only place where commands are dispatched."""
        self._require_running()
        match command:
            # the caller's utterances
            case cmd.Transcribe(utterance, revision):
                self._ears.transcribe(utterance, revision)
            case cmd.AnnounceSpeech(utterance, at_sample):
                self._user_items.announce_speech(utterance, at_sample)
            case cmd.ReopenTurn(turn, utterance):
                self._background.unheard(turn)
                self._responses.cut(turn, "turn_detected", keeps_heard=False)
                self._log.reopened(turn, now_ns)
                self._user_items.reopen(utterance)
            case cmd.CommitUtterance(utterance, text, by_client):
                self._caller_said()
                self._script.next = self._again = None  # there is something to answer
                if self._script.announces and not by_client and self._machine.is_asked:
                    self._displaced = self._displaced or (ResponseOptions(), False)
                self._prefill.heard_all()
                self._user_items.commit(utterance, text, by_client=by_client, now_ns=now_ns)
            case cmd.CompleteTranscript(utterance, text):
                self._user_items.complete(utterance, text)
            case cmd.FailTranscript(utterance):
                self._user_items.fail(utterance)
            case cmd.CommitSilence(silence_ms):
                self._again = None
                self._user_items.commit_silence(silence_ms)
            case cmd.DropUtterance(utterance, announced, was_echo):
                self._prefill.heard_all()
                self._user_items.drop(utterance, announced=announced, was_echo=was_echo)
            # responses
            case cmd.GuessReply(turn, text):
                if self._options.preemptive:
                    self._responses.prepare_preemptive(turn, self.settings, text)
            case cmd.DropGuess():
                self._responses.discard_preemptive()
                self._log.mark_next_turn(MarkName.DISCARDED, now_ns)
            case cmd.StartReply(turn, answer_after_ms):
                self._start_response(turn, now_ns, answer_after_ms)
            case cmd.ReleaseOpener(turn):
                self._responses.release_opener(turn)
            case cmd.ReleaseReply(turn):
                self._script.heard()
                self._unheard = None
                self._responses.release(turn)
            case cmd.CutReply(turn, reason):
                if reason == "turn_detected":
                    self._script.restore()
                    # One that has called the client does not begin anew: the client asks.
                    self._again = None if self._responses.awaits_client else self._unheard
                    self._unheard = None
                    if self._has_no_words(turn):
                        self._background.unheard(turn)
                else:
                    self._script.heard()
                    self._unheard = None
                self._responses.cut(turn, reason)
            case cmd.HoldReply(turn):
                self._responses.hold(turn)
            case cmd.ResumeReply(turn):
                self._responses.resume(turn)
            case cmd.DuckReply(turn):
                self._responses.duck(turn)
            case cmd.UnduckReply():
                self._responses.unduck()
            case cmd.Apologize(turn):
                if self._has_no_words(turn):
                    self._background.failed(turn)
                self._script.heard()
                self._unheard = None
                self._responses.apologize(turn)
            case cmd.AbandonReply(turn):
                if self._has_no_words(turn):
                    self._background.failed(turn)
                self._responses.cut(turn, None)
            # the call
            case cmd.PromptCaller():
                self._script.next = self._options.sentences(self.settings.language).idle_prompt
            case cmd.HangUp():
                raise SilentCallError
            case cmd.RefuseRequest(code):
                self._complain(ClientError(REFUSALS[code], code=code), self._request_id)

    def _start_response(self, turn: TurnId, now_ns: int, answer_after_ms: int) -> None:
        options, is_asked = ResponseOptions(), False
        script: str | None = None
        if self._machine.apologizes:  # the options of a response that waits stay its own
            self._script.next = None
        else:
            options, self._response_options = self._response_options, options
            script = self._script.take()
            is_asked, self._is_asked = self._is_asked or script is not None, False
            if self._again is not None and not is_asked:
                options, is_asked = self._again
        self._unheard, self._again = (options, is_asked), None
        self._log.reply_begun(turn, now_ns, greets=script is not None, asked=is_asked)
        voiced_ns = None if is_asked else self._log.so_far(turn).at.get(_VOICED)
        settings = options.applied(self.settings)
        if script is None and not options.out_of_band and options.input is None:
            self._background.answered(turn)
        self._responses.begin(
            turn,
            settings,
            options,
            script,
            voiced_ns=voiced_ns,
            answer_after_ms=answer_after_ms,
        )

    def _follow_announcement(self) -> None:
        """Ask for the response that waits behind an announcement, once that has begun."""
        if self._displaced is None or self._script.announces or self._machine.is_asked:
            return
        (self._response_options, self._is_asked), self._displaced = self._displaced, None
        self.feed(ev.FollowUpRequested())

    @property
    def _is_unheard(self) -> bool:
        """True while a response is in progress of which nothing was heard."""
        return self._machine.agent is not Agent.IDLE and self._has_no_words(self._machine.turn)

    def _has_no_words(self, turn: TurnId) -> bool:
        """True if nothing was heard of this turn's response, the newest one."""
        run = self._responses.current
        if run is None or run.reply.turn != turn:
            return False
        return not self._items.stands(run.reply)[0].strip()

    def _require_running(self) -> None:
        if not self._is_running:
            raise ClientError("The session has not started yet.", code="session_not_started")


def budget_of(settings: SessionSettings, profile: Budget) -> Budget:
    """Latency budget of the next turns: the session's total, and the silence that it asks for."""
    wait_ms = asked_wait_ms(settings.turn_detection)
    return profile.with_total(settings.budget_ms).widened(wait_ms)
