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
    r"|(?im:^[ \t*]*+#++[ \t]*+(?:instruction|response|input)\b)|(?im:^[ \t*#]*+example[ \t]++[0-9]++[ \t*]*+[:.)])"
    r"|(?<=\s)(?:Question|Q)[ \t]*+[0-9]*+[ \t]*+:"
    r"|<\|[A-Za-z_]{1,20}\|>|</s>|</?(?:start|end)_of_turn>|\[/?INST\]"  # a chat marker that the decoder let through
)
_HALF_READ = 25_000
"""Characters; of a reply longer than twice this only so much of either end is read (ours)."""
_THOUGHT_ENDS = re.compile(r"</think(?:ing)?>", re.I)
_THOUGHT = re.compile(r"\s*+<think(?:ing)?>", re.I)
_MARKER = re.compile(r"#{4,}+")
_ANSWER_HEAD = re.compile(
    r"\s*+(?:\*\*)?(?:the\s)?(?:final\s)?answer(?:\sis)?\s*+(?:[:=]\s*+(?:\*\*)?|\*\*|$|(?<=\n))", re.I
)
_HEADING = re.compile(
    r"\W*+(?:(?:step|part|case|method|approach|section|example|round)\s*+#?[0-9]++\b"
    r"|(?:solution|explanation|conclusion|reasoning|calculations?|steps|analysis|summary|verification|check)\W*+$)",
    re.I,
)
# Lost backslashes are common: "\b" is a backspace in many a string.
_BOX = re.compile(r"\\f?box(?:ed)?(?![A-Za-z])|(?:\x08oxed|(?<![A-Za-z\\])boxed)(?=\{)")
_ANSWER_WORD = (
    r"(?:\b(?:answers?|ans\.?(?=\s?:)|antwort|opci[óo]n\scorrecta|alternativa\scorreta|respuesta|r[ée]ponse|risposta"
    r"|resposta)\b|ответ|答案|答え|정답|답)"
)
_IS = (
    r"(?:\s{0,3}(?:(?:would\sbe|should\sbe|must\sbe|will\sbe|is|was|are|ist|lautet|es|est|è|é)(?!\w)"
    r"|(?:is|was|are)(?=n['’]?t\b)|是|为|為|选|選|は|은|는|=|:|：)){1,2}"
)
CUE = re.compile(
    rf"{_ANSWER_WORD}(?:\s(?:correct[ae]|correta|corretta|finale?)(?!\w))?(?:\s(?:to|for)\s[^.\n]{{0,60}}?)?"
    rf"(?:\*\*|[\"'])?{_IS}|<answer>",
    re.I,
)
"""Words after which an answer stands; a few other languages' words among them, as models change language."""
_NO_ANSWER_FOLLOWS = re.compile(
    r"\W*(?:correct|right|wrong|consistent|reasonable|based|below|above|as\sfollows|clear)\b", re.I
)
_FORMER = re.compile(r"\b(?:previous|earlier|initial|original|wrong|incorrect|old)\s$", re.I)
_CUE_REACH = 300
"""Characters after a cue that are looked at (ours)."""
_SENTENCE_END = re.compile(r"(?<!approx)[.!?;](?=\s|$)|\s\((?![A-Za-z]\))|\s(?:because|since|so|which)\b", re.I)
REFUSAL = re.compile(
    r"\b(?:do\snot|don['’]t|does\snot|cannot|can['’]?t|could\snot|couldn['’]t|unable\sto|not\sable\sto|impossible\sto)"
    r"\s(?:be\s)?(?:know|tell|determined?|answer(?:ed)?|say|find|solved?|computed?|calculated?|decide|help|assist"
    r"|do\sth(?:is|at))\b"
    r"|\b(?:not|n['’]t)\shave\senough\b|\bunanswerable\b|\b(?:not\senough|insufficient|need\smore|lack\sof)\s(?:information|data|context)\b|\bmore\sinformation\sis\b"
    r"|\bno\s(?:idea|solution|answer)\b|\b(?:not\ssure|unsure|uncertain|unclear|unknown)\b",
    re.I,
)
"""A reply that declines: no number is dug out of it."""

_SECOND_THOUGHT = re.compile(
    r"(?:^|[.!?…:)}*$\n])\W{0,4}(?:(?:hmm+|oh|but|no)\b\W{1,3})?(?:wait|hold\son|actually|correction|oops|sorry|no|on\ssecond\sthought|scratch\sthat"
    r"|let\sme\s(?:correct|redo|recompute|recalculate|fix)|I\s(?:made\sa|was)\s(?:mistake|wrong|error))\b",
    re.I,
)
_TAKEN_BACK = re.compile(
    r"(?<=actually)\b|(?<=correction)\b|(?<=oops)\b|(?<=scratch\sthat)\b|(?<=second\sthought)\b|[^\n]{0,60}?\b(?:no|wrong|mistaken?|incorrect|error|not\s(?:right|correct)|should\sbe|make\sthat|it['’]?s|it\sis"
    r"|(?:I|it)\s(?:meant|was))\b",
    re.I,
)

_WORDS = re.compile(r"[+-]?[0-9]++(?:[.,/:][0-9]++)*+%?|[^\W_]++")
_ARTICLES = frozenset({"a", "an", "the"})


def own_part(reply: str) -> str:
    """The reply up to where the model goes on with a question of its own making or a chat marker.

    A question restated at the very start is kept: nothing was said before it. Thoughts (`<think>…</think>`) are not the
    answer; a thought that never ends leaves nothing.
    """
    if len(reply) > 2 * _HALF_READ:
        reply = f"{reply[:_HALF_READ]}\n{reply[-_HALF_READ:]}"
    reply = _THOUGHT_ENDS.split(reply)[-1]
    if _THOUGHT.match(reply):
        return ""
    for match in _RUN_ON.finditer(reply):
        if reply[: match.start()].strip():
            return reply[: match.start()]
    return reply


def settled(own: str, cue: re.Pattern[str] = CUE) -> str | None:
    """Lenient: the reply from its last second thought on ("Wait, …"), if an answer is announced there again.

    `None`: an announced answer was taken back and no other was announced. Then the reply gives none.
    """
    thoughts = list(_SECOND_THOUGHT.finditer(own))
    places = [match.start() for pattern in (_MARKER, _BOX) for match in pattern.finditer(own)] if thoughts else []
    places += [match.start() for match in cue.finditer(own) if _opens_answer(own, match)] if thoughts else []
    for thought in reversed(thoughts):
        if not places or thought.start() < min(places):
            break
        if max(places) >= thought.start():
            return own[thought.start() :]
        if _TAKEN_BACK.match(own, thought.end()):
            return None
    return own


def second_thought(own: str) -> str | None:
    """What follows the last second thought; `None` without one."""
    thoughts = list(_SECOND_THOUGHT.finditer(own))
    return own[thoughts[-1].end() :] if thoughts else None


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
        if not _HEADING.match(line) and not (line.endswith(":") and len(line) > 4 and head is None):
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


def after_last_cue(own: str, cue: re.Pattern[str] = CUE, reach: int = _CUE_REACH) -> str | None:
    """What follows the last answer cue; `None` without one. "The answer is correct" announces nothing: skipped."""
    for match in reversed(list(cue.finditer(own))):
        if _opens_answer(own, match):
            return _after(own, match, reach)
    return None


def _after(own: str, cue: re.Match[str], reach: int) -> str:
    return own[cue.end() : cue.end() + reach].partition("</answer")[0].lstrip(" \t:*").lstrip()


def _opens_answer(own: str, cue: re.Match[str]) -> bool:
    after = _after(own, cue, _CUE_REACH)
    former = _FORMER.search(own[max(0, cue.start() - 16) : cue.start()])
    return bool(after) and not former and not _NO_ANSWER_FOLLOWS.match(after)


def last_cued(own: str, cue: re.Pattern[str] = CUE) -> str | None:
    """The line after the last answer cue; `None` without one."""
    after = after_last_cue(own, cue)
    return None if after is None else next((line.strip() for line in after.splitlines() if _WORDS.search(line)), "")


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
