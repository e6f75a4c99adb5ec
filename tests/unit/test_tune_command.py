"""`bufferctl tune`: what it shows, recommends and stores, and its replay of a recorded history."""

import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import boto3
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bufferctl.__main__ import main
from bufferctl.history import HistoryLine, measure, read_rules, replay
from bufferctl.judging import judge, rounded
from bufferctl.learning import learn
from bufferctl.turns import Run, run_of
from message_buffer.json_object import Json
from message_buffer.rules.due_time import Due
from message_buffer.rules.learned import SPANS
from message_buffer.rules.rules_and_defaults import Rules
from message_buffer.tuning.curve import Counts, curve, going_on
from tests.support.gaps import counts_of, truly_cut
from tests.support.learned import MODEL
from tests.support.model import ConversationModel
from tests.unit.test_bufferctl import FakeAws

RULES = st.sampled_from([
    {}, {"silenceMs": 2_500, "typingInferenceMs": 0}, {"wait": "learned", "learned": MODEL}, {"maxMessages": 2},
    {"minMessages": 3},
    {"maxWaitMs": 4_000}, {"wait": "window", "windowMs": 3_000}, {"priority": "vip"}, {"preset": "customers"},
])  # fmt: skip
GAPS = st.lists(st.tuples(st.one_of(st.integers(0, 12_000), st.integers(0, 3_000)), st.booleans()), max_size=25)


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> FakeAws:
    fake = FakeAws()
    monkeypatch.setattr(boto3, "Session", lambda **_: fake)
    fake.refuse("rules.get", "not_found", "There are no rules.")
    fake.answer("rules.set", {"version": 3, "open": {"looked": 2, "retimed": 1, "complete": True}})
    scopes = ("acme/whatsapp/sales", "acme/telegram/", "a%2Fb/telegram/sales")
    fake.answer("tune.read", {"scopes": {scope: some_counts() for scope in scopes}})
    return fake


def some_counts(turns: int = 2_000) -> Counts:
    return counts_of(random.Random(4), turns=turns, silence_ms=1_000, reply_ms=4_000)


def run(*arguments: str) -> int:
    return main(["--stage", "prod", "tune", *arguments])


def stored(aws: FakeAws) -> list[Json]:
    return [{"scope": each["scope"], "rules": each["rules"]} for each in aws.asked if each["operation"] == "rules.set"]


# -- a stage ---------------------------------------------------------------------------------------------------------


def test_tune_shows_each_scope_the_curve_and_a_recommendation(aws: FakeAws, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--tenant", "acme", "--weeks", "2") == 0
    assert aws.asked == [{"operation": "tune.read", "weeks": 2}]
    shown = capsys.readouterr().out
    assert [line.split()[:3] for line in shown.splitlines()[1:4]] == [
        ["acme", "whatsapp", "sales"], ["acme", "telegram", "2000"], ["all", "-", "-"],
    ]  # fmt: skip
    assert f"{going_on(some_counts()).share:.0%} (" in shown
    assert "Recommended: silenceMs " in shown
    assert not stored(aws)


def test_programs_get_the_same_as_json(aws: FakeAws, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--json", "--cut-share", "30%") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["all"]["batches"] == 6_000
    assert found["all"]["cut"]["share"] <= 0.3
    assert found["curve"]["1000"]["share"] == pytest.approx(truly_cut(1_000), abs=0.05)


@pytest.mark.parametrize(
    ("options", "name", "change"),
    [
        ((), "stage", lambda rules: rules),
        (("--tenant", "acme"), "tenant:acme", lambda rules: rules),
        (("--tenant", "a/b", "--agent", "sales"), "agent:a%2Fb/sales", lambda rules: rules),
        (("--platform", "whatsapp"), "stage", lambda rules: {"platformOverrides": {"whatsapp": rules}}),
    ],
)
def test_apply_stores_one_wait_in_the_rules_of_the_scope(
    options: tuple[str, ...], name: str, change: Any, aws: FakeAws, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--apply", "--mean-wait", "2.5s", *options) == 0
    assert stored(aws) == [{"scope": name, "rules": change({"silenceMs": 2_500, "typingInferenceMs": 0})}]
    shown = capsys.readouterr().out
    assert "silenceMs: 2500" in shown
    assert "Version 3, in force within 10 s." in shown


def test_apply_keeps_the_other_rules_of_the_scope(aws: FakeAws) -> None:
    aws.answer("rules.get", {"rules": {"maxWaitMs": 20_000, "silenceMs": 900}, "version": 2})
    assert run("--apply", "--mean-wait", "2s", "--tenant", "acme") == 0
    assert stored(aws)[0]["rules"] == {"maxWaitMs": 20_000, "silenceMs": 2_000, "typingInferenceMs": 0}


def test_below_300_batches_nothing_is_recommended_or_stored(aws: FakeAws, capsys: pytest.CaptureFixture[str]) -> None:
    aws.answer("tune.read", {"scopes": {"acme/whatsapp/sales": some_counts(turns=299)}})
    assert run("--apply") == 1
    assert not stored(aws)
    assert "Nothing was stored: 299 batches were counted, and a recommendation needs 300." in capsys.readouterr().err
    assert run() == 0
    assert "No recommendation: 299 batches" in capsys.readouterr().out


def test_a_stage_that_counted_nothing_says_so(aws: FakeAws, capsys: pytest.CaptureFixture[str]) -> None:
    aws.answer("tune.read", {"scopes": {}})
    assert run() == 0
    assert "No batches were counted here." in capsys.readouterr().out
    assert run("--apply") == 1


@pytest.mark.parametrize(
    "wrong",
    [
        ("--agent", "a"),
        ("--cut-share", "x"),
        ("--cut-share", "0.2"),
        ("--mean-wait", "4"),
        ("--mean-wait", "8.1s"),
        ("h.jsonl", "--apply"),
        ("h.jsonl", "--tenant", "a"),
        ("h.jsonl", "--agent", "a"),
        ("--rules", "{}"),
        ("--learn", "--apply"),
        ("--learn", "--picture", "c.svg"),
        ("--learn", "--switch-on", "a"),
        ("--table", "t.csv"),
        ("--switch-on", "a", "--tenant", "b"),
    ],
)
def test_wrong_usage_asks_the_stage_nothing(wrong: tuple[str, ...], aws: FakeAws) -> None:
    assert run(*wrong) == 2
    assert not aws.asked


def test_the_picture_has_the_curve_its_interval_today_and_the_recommendation(
    aws: FakeAws, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "curve.svg"
    assert run("--picture", str(file)) == 0
    assert f"The curve is in {file}." in capsys.readouterr().out
    picture = ElementTree.parse(file).getroot()  # noqa: S314 - written by the command
    view = [float(each) for each in picture.attrib["viewBox"].split()]
    curves = {each.get("class"): each for each in picture.iter() if each.get("class")}
    points = [tuple(map(float, each.split())) for each in curves["line"].attrib["d"][1:].split(" L")]
    assert len(points) == len(curve({}))
    assert all(0 <= x <= view[2] and 0 <= y <= view[3] for x, y in points)
    assert [y for _, y in points] == sorted(y for _, y in points)  # a longer silence cuts less
    now = float(curves["now"].attrib["cx"]), float(curves["now"].attrib["cy"])
    assert min(abs(now[0] - x) + abs(now[1] - y) for x, y in points) < 2  # the rules of today are on the curve
    assert any("recommended: " in (each.text or "") for each in picture.iter())
    assert "prefers-color-scheme: dark" in file.read_text()


def test_files_that_cannot_be_read_or_written_are_named(aws: FakeAws, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--picture", "/nowhere/curve.svg") == 1
    assert run("/nowhere/history.jsonl") == 1
    aws.answer("tune.read", read_with(some_turns(2_000)))
    assert run("--learn", "--table", "/nowhere/turns.csv") == 1
    said = capsys.readouterr().err
    assert "Cannot write /nowhere/curve.svg" in said
    assert "Cannot read /nowhere/history.jsonl" in said
    assert "/nowhere/turns.csv" in said


# -- the learned wait ------------------------------------------------------------------------------------------------


def turns_of(*kinds: tuple[int, str]) -> list[str]:
    """Return so many turns of each kind, spread over all folds."""
    return [f"{number % 50} {turn}" for many, turn in kinds for number in range(many)]


def some_turns(turns: int) -> list[str]:
    """Return turns. Half are a single question. Of the others, 80 % go on after 5 s."""
    return turns_of((turns * 2 // 5, ":000 50:020 /"), (turns // 10, ":000 /"), (turns // 2, ":020 /"))


def read_with(turns: list[str]) -> Json:
    return {"scopes": {"acme/whatsapp/": some_counts()}, "turns": turns}


def shares_in(text: str) -> list[float]:
    """Return the gain in percentage points, and then the shares in percent."""
    points = re.findall(r"([-\d.]+) percentage points \(([-\d.]+) to ([-\d.]+)\)", text)
    return [float(each) / 100 for each in (*points[0], *re.findall(r"([-\d.]+)%", text))]


def test_learn_judges_a_model_on_turns_that_it_was_not_trained_on_and_stores_nothing(
    aws: FakeAws, capsys: pytest.CaptureFixture[str]
) -> None:
    aws.answer("tune.read", read_with(some_turns(2_000)))
    assert run("--learn", "--mean-wait", "2s", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert aws.asked[0]["turns"] is True
    assert stored(aws) == []
    rules = Rules(wait="learned", learned=tuple(found["learned"]))
    assert int(rules.timing_of("and").learned[:5]) == 6_000
    assert int(rules.timing_of("and?").learned[:5]) == 1_000
    assert found["mean_wait_ms"] == pytest.approx(1_500), "a tenth of the turns waits 6 s in the end"
    assert (found["share_learned"], found["share_fixed"], found["turns"]) == (0, 1, 2_000)
    assert run("--learn", "--mean-wait", "2s") == 0
    assert "Nobody waits by it." in capsys.readouterr().out


def test_learn_needs_1000_turns_of_several_conversations_and_takes_the_mean_wait_of_today(
    aws: FakeAws, capsys: pytest.CaptureFixture[str]
) -> None:
    scopes = {"acme/whatsapp/": {"batches": 10, "waited_ms": 40_000, "resolved": 10, "e10": 10}}
    same = [(500, ":000 25:000 /"), (500, ":000 /")]
    aws.answer("tune.read", {"scopes": scopes, "turns": turns_of(*same)[1:]})
    assert run("--learn") == 1
    assert "999 turns were kept for a model, and it needs 1,000" in capsys.readouterr().err
    aws.answer("tune.read", {"scopes": scopes, "turns": turns_of(*same)})
    assert run("--learn") == 0
    assert "3 s" in capsys.readouterr().out
    aws.answer("tune.read", {"scopes": scopes, "turns": ["2 :000 /"] * 1_000})
    assert run("--learn") == 1, "no other half"


def test_a_model_of_a_table_waits_equally_long_soon_after_a_batch(
    aws: FakeAws, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, lines = tmp_path / "turns.csv", ["corpus,fold,turn,pos,gap,n_chars,end,a_n,a_gap,hour"]
    for turn in range(300):
        lines += [
            f"a,{turn % 50},{turn},{pos},{gap},{7 * pos},{pos % 3},0,,5" for pos, gap in ((1, 5), (2, 20), (3, ""))
        ]
    file.write_text("\n".join(lines))
    aws.answer("tune.read", read_with(some_turns(2_000)))
    assert run("--learn", "--table", str(file), "--mean-wait", "3s", "--json") == 0
    assert json.loads(capsys.readouterr().out)["learned"][SPANS + 2] == 0


def test_a_tenant_waits_by_the_model_if_it_cuts_less_at_an_equal_mean_wait(
    aws: FakeAws, capsys: pytest.CaptureFixture[str]
) -> None:
    aws.answer("rules.get", {"rules": {"maxWaitMs": 40_000}, "version": 2})
    aws.answer("tune.read", read_with(some_turns(2_000)))
    assert run("--switch-on", "a/b", "--mean-wait", "2s") == 0
    (change,) = stored(aws)
    assert change["scope"] == "tenant:a%2Fb"
    assert change["rules"].pop("learned")
    assert change["rules"] == {"maxWaitMs": 40_000, "wait": "learned"}
    assert shares_in(capsys.readouterr().out)[:3] == [1, 1, 1]


def test_a_tenant_does_not_wait_by_a_model_that_finds_nothing(aws: FakeAws, capsys: pytest.CaptureFixture[str]) -> None:
    same = [(many, f":{each} 25:{other} /") for each in ("000", "020") for many, other in ((225, "000"), (225, "020"))]
    aws.answer("tune.read", read_with(turns_of(*same, (125, ":000 /"), (125, ":020 /"))))
    assert run("--switch-on", "acme", "--mean-wait", "4s") == 1
    assert stored(aws) == []
    refused = capsys.readouterr().err
    assert "was not switched on" in refused
    share, low, high = shares_in(refused)
    assert low <= share <= high
    assert low <= 0


def test_no_model_is_made_if_hardly_anybody_was_watched_to_the_end(
    aws: FakeAws, capsys: pytest.CaptureFixture[str]
) -> None:
    """All authors who were watched for 11 s went on. So a model sees none finish, and long waits cost nothing."""
    early = [(800, ":000 25:000 /70"), (400, ":000 /70"), (20, ":000 100:000 /70")]
    aws.answer("tune.read", read_with(turns_of(*early)))
    assert run("--switch-on", "acme", "--mean-wait", "4s") == 1
    assert stored(aws) == []
    assert "Answers come early" in capsys.readouterr().err


def test_without_a_gap_that_was_watched_for_a_second_nothing_is_learned(
    aws: FakeAws, capsys: pytest.CaptureFixture[str]
) -> None:
    aws.answer("tune.read", read_with(turns_of((2_000, ":000 /5"))))
    assert run("--switch-on", "acme") == 1
    assert "may not cut less" in capsys.readouterr().err


def test_a_few_turns_do_not_switch_a_tenant_on(aws: FakeAws, capsys: pytest.CaptureFixture[str]) -> None:
    few = [(15, ":000 50:020 /"), (3_000, ":020 /")]
    aws.answer("tune.read", read_with(turns_of(*few)))
    assert run("--switch-on", "acme", "--mean-wait", "2s") == 1
    assert "may not cut less" in capsys.readouterr().err
    aws.answer("tune.read", read_with(turns_of((60, few[0][1]), few[1])))
    assert run("--switch-on", "acme", "--mean-wait", "2s") == 0


def test_a_few_conversations_do_not_switch_a_tenant_on_however_many_turns_they_have(
    aws: FakeAws, capsys: pytest.CaptureFixture[str]
) -> None:
    for folds, accepted in ((9, 1), (10, 0)):
        aws.answer("tune.read", read_with([turn for turn in some_turns(10_000) if int(turn.split()[0]) < folds]))
        assert run("--switch-on", "acme", "--mean-wait", "2s") == accepted
    assert "may not cut less" in capsys.readouterr().err


def test_one_wait_joins_the_gaps_that_are_kept_as_the_next_tenth_of_a_second() -> None:
    """The waits are 6 s and 1 s, 1.05 s on average. So a gap of 1.04 s, which is kept as 1.1 s, is not cut."""
    runs = [run_of(f"{number % 50} {':000 11:000 /' if number == 7 else ':020 /'}") for number in range(100)]
    judged = judge([(runs, tuple(MODEL))])
    assert (judged.mean_wait_ms, judged.share_fixed) == (1_050, 0)


def test_a_model_that_only_gives_up_turns_that_are_cut_already_is_not_switched_on(
    aws: FakeAws, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing that a message shows predicts whether its author goes on. Authors differ, so turns differ in length."""
    for seed in range(5):
        draw, turns = random.Random(seed), list[str]()
        authors = [(draw.uniform(0.1, 0.9), draw.uniform(15, 60)) for _ in range(60)]
        for at in range(3_000):
            goes_on, mean_tenths = authors[at % 60]
            gaps = ""
            while draw.random() < goes_on and len(gaps) < 100:
                gaps += f" {min(int(draw.expovariate(1 / mean_tenths)) + 1, 300)}:{draw.choice(('000', '020'))}"
            turns.append(f"{at % 60 % 50} :{draw.choice(('000', '020'))}{gaps} /")
        aws.answer("tune.read", read_with(turns))
        assert run("--switch-on", "acme", "--mean-wait", "3s") == 1
        refused = capsys.readouterr().err
        assert shares_in(refused)[1] > 0, "it cuts fewer turns"
        assert "more batches of them" in refused


def turns_of_chance(draw: random.Random, number: int) -> list[Run]:
    """Return turns in which nothing that a message shows predicts whether its author goes on."""
    turns = []
    for at in range(number):
        gaps = [f" {max(int(draw.expovariate(1 / 30)), 1)}:000" for _ in range(int(draw.expovariate(1.2)))]
        turns.append(f"{at % 50} :{draw.choice(('000', '020'))}{''.join(gaps)} /")
    return [*map(run_of, turns)]


def test_a_model_that_is_switched_on_also_cuts_less_of_later_turns() -> None:
    """All that can be gained here is a short wait after a turn that is cut already."""
    draw, accepted = random.Random(1), 0
    later = turns_of_chance(draw, 20_000)
    for _ in range(10):
        runs = turns_of_chance(draw, 1_200)
        halves = [[each for each in runs if each.fold % 2 == half] for half in (0, 1)]
        models = [rounded(learn(each, 3_000)) for each in halves]
        if judge(list(zip(halves, reversed(models), strict=True))).gain.low > 0:
            accepted += 1
            assert judge([(later, rounded(learn(runs, 3_000)))]).gain.low > 0
    assert 0 < accepted < 10


def test_the_interval_contains_the_truth_as_often_as_it_says() -> None:
    """In 60 % of the turns only the learned wait joins the gap, and in the others only the fixed one."""
    kinds, inside = (":000 50:000 /", ":020 20:020 /"), 0
    for seed in range(100):
        draw = random.Random(seed)
        runs = [run_of(f"{number % 50} {kinds[draw.random() > 0.6]}") for number in range(1_000)]
        judged = judge([(runs, tuple(MODEL))])
        late = sum(run.fragments[0].gap_after_ms == 5_000 for run in runs) / len(runs)
        assert (judged.share_fixed, judged.share_learned) == pytest.approx((late, 1 - late))
        inside += judged.gain.low <= 0.6 - 0.4 <= judged.gain.high
    assert inside >= 90


# -- a recorded history ----------------------------------------------------------------------------------------------


def emitted_by_the_model(lines: list[HistoryLine], rules: Rules) -> Iterator[tuple[int, Due, int]]:
    """Yield what the model of the lanes emits, if each batch is taken when it is due."""
    model, last = ConversationModel(), 0

    def due_until(now: float) -> Iterator[tuple[int, Due, int]]:
        if model.waiting and model.due and model.due.due_at_ms <= now:
            due = model.due
            frozen = model.freeze("b", 1_000, due.due_at_ms)
            model.frozen = None
            yield last, due, len(frozen.messages)

    for number, line in enumerate(lines):
        if line.is_customer:
            yield from due_until(line.at_ms)
            model.buffer(f"m{number}", b"", rules.timing_of(line.text, line.at_ms), line.at_ms)
            last = number
            yield from due_until(line.at_ms)
    yield from due_until(float("inf"))


@given(GAPS, RULES)
def test_a_replay_emits_what_the_model_of_the_lanes_emits(gaps: list[tuple[int, bool]], rules: Json) -> None:
    at_ms, lines = 1_700_000_000_000, []
    for gap_ms, is_customer in gaps:
        at_ms += gap_ms
        lines.append(HistoryLine(at_ms, is_customer, "well?" if gap_ms % 2 else "well"))
    of_history = read_rules(rules)
    batches = replay(lines, of_history)
    assert [tuple(each) for each in batches] == [*emitted_by_the_model(lines, of_history)]
    assert sum(each.messages for each in batches) == sum(line.is_customer for line in lines)
    counts, _ = measure({"c": lines}, of_history)
    gaps_counted = sum(number for name, number in counts.items() if name[0] in "gc")
    assert gaps_counted == sum(line.is_customer for line in lines)


def test_a_history_is_replayed_by_the_given_and_the_recommended_rules(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng, file, at_ms = random.Random(2), tmp_path / "history.jsonl", 1_700_000_000_000
    lines = []
    for _ in range(900):
        for gap_ms in (60_000, *((rng.choice((1_500, 3_000, 6_000)),) if rng.random() < 0.6 else ())):
            at_ms += gap_ms
            lines.append({"conversation": "c1", "at": at_ms, "from": "customer"})
        at_ms += 20_000
        lines.append({"conversation": "c1", "at": at_ms, "from": "us", "text": "ok"})
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert main(["tune", str(file), "--rules", '{"silenceMs": 1000}', "--cut-share", "15%", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    given_rules, recommended = found["replays"]
    assert found["all"]["silenceMs"] >= 3_000
    assert given_rules["cut"] == pytest.approx(found["all"]["goesOn"]["share"], abs=0.01)
    assert recommended["cut"] < 0.25 < given_rules["cut"]
    assert recommended["batches"] < given_rules["batches"]
    assert recommended["meanWaitMs"] == found["all"]["silenceMs"]


def test_times_may_be_iso_and_lines_in_any_order(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "history.jsonl"
    times = ("2026-01-01T12:00:05Z", "2026-01-01T12:00:00Z")
    text = "A line separator\u2028 ends no line."
    lines = (f'{{"conversation": "c", "at": "{at}", "from": "customer", "text": "{text}"}}\n' for at in times)
    file.write_text("".join(lines), "utf-8")
    assert main(["tune", str(file), "--json"]) == 0
    replayed = json.loads(capsys.readouterr().out)["replays"][0]
    assert (replayed["batches"], replayed["cut"]) == (2, 0.5)


@pytest.mark.parametrize("line", ["{", "[]", '{"conversation": "c", "at": 1, "from": "bot"}', '{"at": 1}'])
def test_a_wrong_line_is_named(line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "history.jsonl"
    file.write_text(f'{{"conversation": "c", "at": 1, "from": "us"}}\n{line}\n')
    assert main(["tune", str(file)]) == 1
    assert "line 2" in capsys.readouterr().err


def test_wrong_rules_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "history.jsonl"
    file.write_text('{"conversation": "c", "at": 1, "from": "us"}\n')
    assert main(["tune", str(file), "--rules", '{"silenceMs": -1}']) == 1
    assert "silenceMs" in capsys.readouterr().err
