"""A page as a tree, so that tests look at elements and not at text. Also says what is not well-formed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser

_VOID = {"meta", "link", "br", "img", "input", "hr", "wbr"}
_MAY_STAY_OPEN = {"html", "body"}


@dataclass
class Node:
    tag: str
    attributes: dict[str, str]
    children: list[Node | str] = field(default_factory=list)

    def all(self, tag: str = "", class_: str = "") -> list[Node]:
        return [
            node
            for node in self.walk()
            if (not tag or node.tag == tag) and (not class_ or class_ in node.attributes.get("class", "").split())
        ]

    def one(self, tag: str = "", class_: str = "") -> Node:
        found = self.all(tag, class_)
        assert found, f"no <{tag} class={class_!r}>"
        return found[0]

    def by_id(self, ident: str) -> Node:
        found = [node for node in self.walk() if node.attributes.get("id") == ident]
        assert len(found) == 1, f"{len(found)} elements with id {ident!r}"
        return found[0]

    def walk(self) -> Iterator[Node]:
        for child in self.children:
            if isinstance(child, Node):
                yield child
                yield from child.walk()

    @property
    def text(self) -> str:
        parts = (child if isinstance(child, str) else child.text for child in self.children)
        return " ".join("".join(parts).split())


class _Builder(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.root = Node("", {})
        self.stack = [self.root]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        assert len(set(names)) == len(names), f"<{tag}> repeats an attribute: {names}"
        node = Node(tag, {name: value or "" for name, value in attrs})
        self.stack[-1].children.append(node)
        if tag not in _VOID:
            self.stack.append(node)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.stack[-1].children.append(Node(tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self.stack[-1].tag == tag, f"</{tag}> closes <{self.stack[-1].tag}>"
        self.stack.pop()

    def handle_data(self, data: str) -> None:
        self.stack[-1].children.append(data)


def parse(page: str) -> Node:
    """The page's tree; fails where elements are not closed in order, or an attribute is given twice."""
    builder = _Builder()
    builder.feed(page)
    builder.close()
    assert all(node.tag in _MAY_STAY_OPEN | {""} for node in builder.stack), [n.tag for n in builder.stack]
    return builder.root
