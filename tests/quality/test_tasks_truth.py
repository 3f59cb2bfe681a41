"""The answer of an item follows from its text: found again by reading the text alone, another way than it was made."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from functools import cache

import pytest
from small_corpora import corpus_for

from longproof.quality.item import Item, evidence_text
from longproof.quality.tasks import FAMILIES
from longproof.quality.tasks.order import ORDINALS
from longproof.quality.tasks.paraphrase import RELATIONS


@cache
def items_of(name: str) -> tuple[Item, ...]:
    family = FAMILIES[name]
    return family.items(seed=11, n=48, corpus=corpus_for(family))


def lines(item: Item) -> list[str]:
    return evidence_text(item).splitlines()


def asked(pattern: str, item: Item) -> tuple[str, ...]:
    found = re.search(pattern, item.question)
    assert found is not None, item.question
    return found.groups()


def read_value(item: Item) -> set[str]:
    """Literal, multi-key and state: the last sentence about the key that gives a value."""
    thing, key = asked(r"What is the (.+) for (.+?)(?: now, after all changes)?\?", item)
    values = [line for line in lines(item) if line.startswith(f"The {thing} for {key} ")]
    return {values[-1].rstrip(".").split()[-1]}


def follow_names(item: Item) -> set[str]:
    thing, key = asked(r"What is the (.+) for (\w+)\?", item)
    text = evidence_text(item)
    while link := re.search(rf"^{key} has the same {thing} as (\w+)\.", text, re.MULTILINE):
        key = link[1]
    return set(re.findall(rf"^The {thing} for {key} is (\d+)\.", text, re.MULTILINE))


def read_all_values(item: Item) -> set[str]:
    (holder,) = asked(r"does (\w+) hold", item)
    return set(re.findall(rf"^{holder} holds the \w+ (\d+)\.", evidence_text(item), re.MULTILINE))


def read_town(item: Item) -> set[str]:
    (trade,) = asked(r"does the (\w+) work", item)
    (deed,) = [deed for deed, called in RELATIONS if called == trade]
    return set(re.findall(rf"^\w+ {deed} in (\w+)\.", evidence_text(item), re.MULTILINE))


def count_people(item: Item) -> set[str]:
    verb, counted = asked(r"How many different people (\w+) an? (\w+)\?", item)
    people = re.findall(rf"^(\w+) {verb} (?:an?|another) {counted}\.", evidence_text(item), re.MULTILINE)
    assert len(people) == len(set(people)) + 1  # one is mentioned twice
    return {str(len(set(people)))}


def count_to_request(item: Item) -> set[str]:
    ordinal, kind, about = asked(r"code of the (\w+) (\w+) about (.+?)\?", item)
    codes = re.findall(rf"a {kind} about {about} and got one with the code (\d+)", evidence_text(item))
    assert len(codes) == int(item.family.removeprefix("order-"))
    return {codes[ORDINALS.index(ordinal)]}


def look_for_it(item: Item) -> set[str]:
    thing, key = asked(r"what the (.+) for (\w+) is\?", item)
    assert f" for {key} is" in evidence_text(item)  # the name alone does not decide
    return {"yes" if f"The {thing} for {key} is" in evidence_text(item) else "no"}


def read_or_say_so(item: Item) -> set[str]:
    thing, key = asked(r"What is the (.+) for (\w+)\?", item)
    assert f" for {key} is" in evidence_text(item)  # the name alone does not decide
    return set(re.findall(rf"^The {thing} for {key} is (\d+)\.", evidence_text(item), re.MULTILINE)) or {"not stated"}


def read_note(item: Item) -> set[str]:
    (key,) = asked(r"note for (\w+) say", item)
    (note,) = re.findall(rf"^The note for {key} says: (.+)\.$", evidence_text(item), re.MULTILINE)
    assert len(note.split()) == len(set(note.split())) == 20
    return {note}


def read_definition(item: Item) -> set[str]:
    nodes: list[ast.AST] = [node for needle in item.needles for node in ast.walk(ast.parse(needle.text))]
    if "default value" in item.question:
        part, name = asked(r"default value of (\w+) in (\w+)\?", item)
        (function,) = [node for node in nodes if isinstance(node, ast.FunctionDef) and node.name == name]
        found = re.search(rf"\b{part}(?:: [^,=]+)? ?= ?(\d+)", ast.unparse(function.args))
        assert found is not None
        return {found[1]}
    (name,) = asked(r"(?:value|decorator|parent class) of (\w+)", item)
    if "the decorator" in item.question:
        return {
            decorator.id
            for node in nodes
            if isinstance(node, ast.FunctionDef) and node.name == name
            for decorator in node.decorator_list
            if isinstance(decorator, ast.Name)
        }
    if "parent class" in item.question:
        return {
            base.id
            for node in nodes
            if isinstance(node, ast.ClassDef) and node.name == name
            for base in node.bases
            if isinstance(base, ast.Name)
        }
    return set(re.findall(rf"^{name} = (\d+)$", evidence_text(item), re.MULTILINE))


def trace_calls(item: Item) -> set[str]:
    """By text: a function calls another when the other's name and a bracket stand in its body."""
    wanted = set(asked(r"calls (\w+)\?", item))
    hops = item.question.count(" calls ")
    assert 1 <= hops <= 3
    for _ in range(hops):
        wanted = {
            needle.text.partition("(")[0].removeprefix("def ")
            for needle in item.needles
            for name in wanted
            if re.search(rf"\b{name}\(", needle.text.partition(":\n")[2])
        }
        assert len(wanted) == 1  # no way to read it otherwise
    return wanted


def find_quote(item: Item) -> set[str]:
    (quoted,) = asked(r'holds the sentence "(.+)" \(with', item)
    assert quoted.count("____") == 1
    pattern = re.escape(quoted).replace("____", r"\S+")
    return {needle.text.split()[1] for needle in item.needles if re.search(pattern, needle.text)}


def join_documents(item: Item) -> set[str]:
    (first,) = asked(r"that document (\w+) refers to\?", item)
    refers = {needle.text.split()[1]: re.findall(r"refers to document (\w+)", needle.text) for needle in item.needles}
    number = {needle.text.split()[1]: re.findall(r"file number is (\d+)", needle.text) for needle in item.needles}
    (second,) = refers[first]
    return set(number[second])


READERS: dict[str, Callable[[Item], set[str]]] = {
    "literal": read_value,
    "multi-key-8": read_value,
    "multi-key-dense": read_value,
    "multi-value": read_all_values,
    "alias-2": follow_names,
    "alias-3": follow_names,
    "paraphrase": read_town,
    "count": count_people,
    "order-4": count_to_request,
    "order-8": count_to_request,
    "absent": look_for_it,
    "absent-free": read_or_say_so,
    "state": read_value,
    "copy": read_note,
    "code-definition": read_definition,
    "code-relation": read_definition,
    "call-trace": trace_calls,
    "quote": find_quote,
    "join": join_documents,
}


def test_every_family_has_a_reader_when_there_is_one_more() -> None:
    assert list(READERS) == list(FAMILIES)


@pytest.mark.parametrize("name", FAMILIES)
def test_the_answer_is_found_again_when_only_the_text_is_read(name: str) -> None:
    for item in items_of(name):
        assert READERS[name](item) == set(item.answers), f"{evidence_text(item)}\n{item.question}"
