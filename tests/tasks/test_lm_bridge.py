"""lm-eval asks, an engine answers: stop strings, thoughts, seeds, what is on disk, what does not fit."""

from typing import Any

import pytest
from lm_eval.api.instance import Instance

from helpers.stub import DictSink, StubEngine
from sawbench.core.errors import UserError
from sawbench.tasks.lm_bridge import EngineLM, Unanswered
from sawbench.tasks.protocol import Protocol


def asking(context: str, until: Any = (), doc_id: int = 0, **options: Any) -> Instance:
    return Instance("generate_until", {}, (context, {"until": list(until), **options}), 0, ("made", doc_id, 1))


def scoring(*arguments: str) -> Instance:
    return Instance("loglikelihood", {}, arguments, 0, ("made", 0, 1))


def bridge(engine: StubEngine, sink: DictSink | None = None, **protocol: Any) -> EngineLM:
    return EngineLM(engine, Protocol(**protocol), sink or DictSink(), budget=50)


class TestAnswers:
    def test_come_back_in_order_though_made_in_another(self) -> None:
        lm = bridge(StubEngine(str.upper))
        assert lm.generate_until([asking(text, doc_id=i) for i, text in enumerate("abc")]) == ["A", "B", "C"]

    def test_stop_strings_go_to_the_engine_where_nothing_thinks(self) -> None:
        engine = StubEngine(lambda p: "one\n\ntwo")
        lm = bridge(engine)
        assert lm.generate_until([asking("?", ["\n\n"])]) == ["one"]
        assert engine.asked[0].sampling.stop == ("\n\n",)

    def test_a_stop_string_inside_a_thought_ends_nothing(self) -> None:
        engine = StubEngine(lambda p: "first\n\nsecond</think>answer\n\nmore")
        lm = bridge(engine, thinking=True)
        prompt = lm.apply_chat_template([{"role": "user", "content": "?"}])
        assert lm.generate_until([asking(prompt, ["\n\n"])]) == ["answer"]
        assert engine.asked[0].sampling.stop == ()

    def test_a_template_that_knows_thoughts_is_never_stopped_early(self) -> None:
        engine = StubEngine(lambda p: "<think>a\n\nb</think>c\n\nd")
        engine.tokenizer.chat_template = "... <think> ..."
        assert bridge(engine).generate_until([asking("?", ["\n\n"])]) == ["c"]

    @pytest.mark.parametrize(
        ("text", "answer"),
        [
            ("<think>not 7</think>8", "8"),
            ("<think>7</think>\n\n8\n\nmore", "8"),
            ("  8", "  8"),
            ("<think>7", ""),
            ("<think>7</think>", ""),
            ("<think>7</think>8<think>7", ""),
            ("\n", ""),
        ],
    )
    def test_a_thought_is_no_part_of_the_answer(self, text: str, answer: str) -> None:
        (found,) = bridge(StubEngine(lambda p: text)).generate_until([asking("?", ["\n\n"])])
        assert found == answer
        assert isinstance(found, Unanswered) is (answer == "")

    def test_the_budget_is_the_protocols_then_the_tasks(self) -> None:
        engine = StubEngine()
        bridge(engine).generate_until([asking("?"), asking("?", doc_id=1, max_gen_toks=7)])
        bridge(engine, max_new_tokens=9).generate_until([asking("?", max_gen_toks=7)])
        assert sorted(r.sampling.max_new_tokens for r in engine.asked) == [7, 9, 50]

    def test_seeds_belong_to_item_and_repeat(self) -> None:
        engine = StubEngine()
        one, two = asking("?", doc_id=1), asking("?", doc_id=2)
        bridge(engine, temperature=0.6).generate_until([one, one, two])
        seeds = {request.id: request.sampling.seed for request in engine.asked}
        assert set(seeds) == {"made/1/0", "made/1/1", "made/2/0"}
        assert len(set(seeds.values())) == 3
        again = StubEngine()
        bridge(again, temperature=0.6).generate_until([two, one])
        assert {r.id: r.sampling.seed for r in again.asked}.items() <= seeds.items()

    def test_every_round_has_ids_and_seeds_of_its_own(self) -> None:
        engine, sink = StubEngine(), DictSink()
        lm = bridge(engine, sink, temperature=0.6)
        own = Instance("generate_until", {}, ("?", {"until": []}), 0, ("made", 0, 2))  # asked twice in each round
        for lm.round in range(3):
            lm.generate_until([own, own])
        assert set(sink.done) == {f"made/0/{repeat}" for repeat in range(6)}
        assert {sample["repeat"] for sample in sink.done.values()} == set(range(6))
        assert len({request.sampling.seed for request in engine.asked}) == 6

    def test_what_is_on_disk_is_not_asked_again(self) -> None:
        sink = DictSink()
        bridge(StubEngine(str.upper), sink).generate_until([asking("a")])
        later = StubEngine(lambda p: "other")
        assert bridge(later, sink).generate_until([asking("a"), asking("b", doc_id=1)]) == ["A", "other"]
        assert [request.id for request in later.asked] == ["made/1/0"]

    @pytest.mark.parametrize("changed", [{"context": "b"}, {"max_gen_toks": 3}])
    def test_a_sample_of_another_prompt_is_never_taken_for_this_one(self, changed: dict[str, Any]) -> None:
        sink = DictSink()
        bridge(StubEngine(str.upper), sink).generate_until([asking("a")])
        with pytest.raises(UserError, match="made/0/0 on disk answers another prompt"):
            bridge(StubEngine(), sink).generate_until([asking(**{"context": "a", **changed})])

    def test_a_prompt_that_leaves_no_room_is_refused_before_anything_is_made(self) -> None:
        engine = StubEngine(max_length=60)
        with pytest.raises(
            UserError, match=r"made/1/0: a prompt of 11 tokens and 50 new ones exceed the context of 60"
        ):
            bridge(engine).generate_until([asking("short"), asking("x" * 11, doc_id=1)])
        assert engine.asked == []

    def test_no_template_no_chat(self) -> None:
        engine = StubEngine()
        engine.tokenizer.chat_template = None
        with pytest.raises(UserError, match=r"protocol\.chat=false"):
            bridge(engine).apply_chat_template([{"role": "user", "content": "?"}])

    @pytest.mark.parametrize(
        ("template", "asked", "told", "warned"),
        [
            ("{{ messages }} {{ enable_thinking }}", True, True, False),
            ("{{ messages }} {{ enable_thinking }}", False, False, False),
            ("{{ messages }}", True, None, True),
            ("{{ messages }}", False, None, False),
            ("{{ messages }}", None, None, False),
        ],
    )
    def test_the_record_says_what_the_template_was_told(
        self, template: str, asked: bool | None, told: bool | None, warned: bool, caplog: pytest.LogCaptureFixture
    ) -> None:
        engine, sink = StubEngine(), DictSink()
        engine.tokenizer.chat_template = template
        lm = bridge(engine, sink, thinking=asked)
        lm.generate_until([asking(lm.apply_chat_template([{"role": "user", "content": "?"}]))])
        assert [sample["thinking"] for sample in sink.done.values()] == [told]
        assert [record.getMessage() for record in caplog.records] == [
            "protocol.thinking=true changes nothing: the chat template has no enable_thinking"
        ] * warned

    def test_special_tokens_are_added_once(self) -> None:
        engine = StubEngine()
        engine.tokenizer.bos_token, engine.tokenizer.bos_token_id = "^", ord("^")
        assert bridge(engine, chat=True).tok_encode("^a") == [ord("^"), ord("a")]
        assert bridge(engine, chat=False).tok_encode("a") == [ord("^"), ord("a")]
        assert bridge(engine, chat=False).tok_encode("^a") == [ord("^"), ord("a")]


class TestLogLikelihood:
    def test_scores_come_from_the_engine(self) -> None:
        engine = StubEngine()
        assert bridge(engine).loglikelihood([scoring("ab", "cde")]) == [(-3.0, False)]
        assert engine.scored == [((ord("a"), ord("b")), (ord("c"), ord("d"), ord("e")))]

    def test_an_empty_context_is_the_start_token(self) -> None:
        engine = StubEngine()
        bridge(engine).loglikelihood([scoring("", "xy")])
        assert engine.scored == [((0,), (ord("x"), ord("y")))]

    def test_equal_pairs_are_scored_once_and_kept(self) -> None:
        sink, engine = DictSink(), StubEngine()
        pair = scoring("a", "b")
        assert bridge(engine, sink).loglikelihood([pair, scoring("a", "bc"), pair]) == [
            (-1, False),
            (-2, False),
            (-1, False),
        ]
        assert len(engine.scored) == 2
        assert bridge(StubEngine(), sink).loglikelihood([pair]) == [(-1.0, False)]

    def test_nothing_is_cut(self) -> None:
        with pytest.raises(UserError, match=r"8 \+ 3 tokens to score exceed the context of 10"):
            bridge(StubEngine(max_length=10)).loglikelihood([scoring("a" * 8, "bbb")])

    def test_a_long_text_is_scored_in_windows_every_token_once(self) -> None:
        engine = StubEngine(max_length=10)
        text = "abcdefghijklmnopqrstuvwxy"
        assert bridge(engine).loglikelihood_rolling([scoring(text)]) == [-25.0]
        assert "".join(chr(t) for _, tokens in engine.scored for t in tokens) == text
        assert all(len(context) + len(tokens) <= 10 for context, tokens in engine.scored)
