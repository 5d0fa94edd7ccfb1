r"""Where the answer stands in a reply, and how a free-text answer is compared.

The readers of all kinds look in the same places, in this order: the agreed marker `#### answer`, the last
`\boxed{…}`, the last answer cue ("the answer is …"). They find those places here. What counts as an answer there is
each kind's own affair.

Every pattern below is linear in the length of the reply (anchored, possessive or bounded): replies are hostile input.
"""

from __future__ import annotations

import re
import unicodedata

_RUN_ON = re.compile(
    r"(?im:^[ \t>*#]*+(?:question|problem|exercise|q)[ \t]*+#?[0-9]*+[ \t*]*+(?:[:.)]|$))"  # a next question recited
    r"|(?im:^[ \t]*+(?:user|human)[ \t]*+:)"
    r"|(?<=\s)(?:Question|Q)[ \t]*+[0-9]*+[ \t]*+:"
    r"|<\|[A-Za-z_]{1,20}\|>|</s>"  # a chat marker that the decoder let through
)
_MARKER = re.compile(r"#{4,}+")
_ANSWER_HEAD = re.compile(
    r"\s*+(?:\*\*)?(?:the\s)?(?:final\s)?answer(?:\sis)?\s*+(?:[:=]\s*+(?:\*\*)?|\*\*|$|(?<=\n))", re.I
)
_HEADING = re.compile(
    r"\W*+(?:(?:step|part|case|method|approach|section|example|round)\s*+#?[0-9]++\b"
    r"|(?:solution|explanation|conclusion|reasoning|calculations?|steps|analysis|summary|verification|check)\W*+$)",
    re.I,
)
_BOX = re.compile(r"\\f?box(?:ed)?(?![A-Za-z])")
_ANSWER_WORD = r"(?:\b(?:answers?|antwort|respuesta|r[ée]ponse|risposta|resposta)\b|ответ|答案|答え)"
_IS = (
    r"(?:\s{0,3}(?:(?:would\sbe|should\sbe|must\sbe|will\sbe|is|was|are|ist|lautet|es|est|è|é)(?!\w)"
    r"|(?:is|was|are)(?=n['’]?t\b)|是|为|為|は|=|:|：)){1,2}"
)
CUE = re.compile(rf"{_ANSWER_WORD}(?:\s(?:to|for)\s[^.\n]{{0,60}}?)?(?:\*\*)?{_IS}", re.I)
"""Words after which an answer stands; a few other languages' words among them, as models change language."""
_NO_ANSWER_FOLLOWS = re.compile(
    r"\W*(?:correct|right|wrong|consistent|reasonable|based|below|above|as\sfollows|clear)\b", re.I
)
_CUE_REACH = 300
"""Characters after a cue that are looked at (ours)."""
_SENTENCE_END = re.compile(r"(?<!approx)[.!?;](?=\s|$)|\s\((?![A-Za-z]\))|\s(?:because|since|so|which)\b", re.I)
REFUSAL = re.compile(
    r"\b(?:do\snot|don['’]t|does\snot|cannot|can['’]?t|could\snot|couldn['’]t|unable\sto|impossible\sto)\s"
    r"(?:be\s)?(?:know|tell|determined?|answer|say|find|solved?|computed?|calculated?|decide)\b"
    r"|\bnot\senough\sinformation\b|\bno\sidea\b|\b(?:not\ssure|unsure|uncertain|unclear|unknown)\b",
    re.I,
)
"""A reply that declines: no number is dug out of it."""

_WORDS = re.compile(r"[+-]?[0-9]++(?:[.,/:][0-9]++)*+%?|[^\W_]++")
_ARTICLES = frozenset({"a", "an", "the"})


def own_part(reply: str) -> str:
    """The reply up to where the model goes on with a question of its own making or a chat marker.

    A question restated at the very start is kept: nothing was said before it.
    """
    for match in _RUN_ON.finditer(reply):
        if reply[: match.start()].strip():
            return reply[: match.start()]
    return reply


def first_marked(own: str) -> str | None:
    """What stands on the line of the first `####`; `None` without a marker. The agreed form, nothing else."""
    parts = _MARKER.split(own, maxsplit=2)
    return parts[1].partition("\n")[0].strip() if len(parts) > 1 else None


def marked_lines(own: str) -> list[str]:
    """Lenient: what each `####` marks, in order, without the fourth-level headings that markdown writes alike.

    An empty marker line, or one that says only "Final answer", takes the next line that is not blank.
    """
    lines = []
    for part in _MARKER.split(own)[1:]:
        head = _ANSWER_HEAD.match(part)
        line = part[head.end() if head else 0 :].strip().partition("\n")[0].strip()
        if not _HEADING.match(line) and not (line.endswith(":") and head is None):
            lines.append(line)
    return lines


def last_box(own: str) -> str | None:
    r"""The content of the last `\boxed{…}`, nested braces kept; `""` if it is empty or unclosed, `None` without one."""
    matches = list(_BOX.finditer(own))
    if not matches:
        return None
    rest = own[matches[-1].end() :].lstrip()
    if not rest.startswith("{"):  # TeX also takes the next token: \boxed 18
        return rest.split(maxsplit=1)[0].rstrip("$") if rest else ""
    depth = 0
    for brace in re.finditer(r"[{}]", rest):
        depth += 1 if brace.group() == "{" else -1
        if depth == 0:
            return rest[1 : brace.start()].strip()
    return ""


def last_cued(own: str, cue: re.Pattern[str] = CUE) -> str | None:
    """The line after the last answer cue; `None` without one. "The answer is correct" announces nothing: skipped."""
    for match in reversed(list(cue.finditer(own))):
        after = own[match.end() : match.end() + _CUE_REACH].lstrip(" \t:*").lstrip()
        if after and not _NO_ANSWER_FOLLOWS.match(after):
            return after.partition("\n")[0].strip()
    return None


def sentence(line: str) -> str:
    """The line up to the end of its first sentence, a remark in parentheses, or a reason given."""
    end = _SENTENCE_END.search(line)
    return (line[: end.start()] if end else line).strip()


def normalise_text(text: str) -> str:
    """Lower case, no punctuation, no articles, single blanks; signs, decimals and fractions of numbers stay.

    Articles stay where nothing else is left, so that the answer "A" is not empty.
    """
    words = _WORDS.findall(unicodedata.normalize("NFC", text).casefold().replace("'", "").replace("’", ""))
    return " ".join([word for word in words if word not in _ARTICLES] or words)


def read_text(reply: str) -> str | None:
    """The normalised words on the line of the first `####`; `None` if there is no marker or nothing after it.

    Free text has no lenient form: without the marker any word could be the answer.
    """
    line = first_marked(own_part(reply))
    return (normalise_text(line) or None) if line is not None else None
