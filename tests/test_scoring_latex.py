"""Answers in LaTeX: what is equal, what only looks so, where the answer stands, and a worker that cannot be hung."""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import pytest

from agent_gspo_core.episode import Problem
from agent_gspo_core.scoring import is_correct, latex, read_answer, score, score_both
from agent_gspo_core.scoring.latex import normalise_latex, overruns, read_latex, same_latex, same_latex_batch

ROOT = Path(__file__).parents[1]
TOWER = "9^{9^{9^{9^9}}}"
"""Evaluating it never ends (Math-Verify #65)."""

EQUAL = [  # (prediction, gold)
    (r"\dfrac{14}{3}", r"\frac{14}{3}"),
    (r"14/3", r"\frac{14}{3}"),
    (r"4\frac{2}{3}", r"\frac{14}{3}"),
    (r"4 \frac23", r"\frac{14}{3}"),
    (r"4 2/3", r"\frac{14}{3}"),
    (r"\frac43", r"4/3"),
    (r"\tfrac{4}{3}", r"\frac43"),
    (r"-\frac{1}{2}", r"\frac{-1}{2}"),
    (r"\frac{1}{-2}", r"-\frac12"),
    (r"-0.5", r"-\frac12"),
    (r"10080", r"10,\!080"),
    (r"10,080", r"10,\!080"),
    (r"10{,}080", r"10,\!080"),
    (r"10\,080", r"10,\!080"),
    (r"10 080", r"10,\!080"),
    (r"\$32,348", r"\$32,\!348"),
    (r"32348", r"\$32,\!348"),
    (r"\$32348.00", r"\$32,\!348"),
    (r"32,348 \text{ dollars}", r"\$32,\!348"),
    (r"$32,348", r"\$32,\!348"),
    (r"18.9", r"\$18.90"),
    (r"11111111100", r"11,\! 111,\! 111,\! 100"),
    (r"11,111,111,100", r"11,\! 111,\! 111,\! 100"),
    (r"58500", r"58,500"),
    (r"90", r"90^\circ"),
    (r"90^{\circ}", r"90^\circ"),
    (r"90°", r"90^\circ"),
    (r"90 degrees", r"90^\circ"),
    (r"90 \text{ degrees}", r"90^\circ"),
    (r"90\degree", r"90^\circ"),
    (r"\frac{270}{7}", r"\frac{270}7\text{ degrees}"),
    (r"\frac{270}{7}^\circ", r"\frac{270}7\text{ degrees}"),
    (r"270/7", r"\frac{270}7\text{ degrees}"),
    (r"864", r"864 \mbox{ inches}^2"),
    (r"864 square inches", r"864 \mbox{ inches}^2"),
    (r"864 \text{ in}^2", r"864 \mbox{ inches}^2"),
    (r"864\text{ square inches}", r"864 \mbox{ inches}^2"),
    (r"864 in^2", r"864 \mbox{ inches}^2"),
    (r"864\,\text{in}^2", r"864 \mbox{ inches}^2"),
    (r"15", r"15\mbox{ cm}^2"),
    (r"15\text{ cm}^2", r"15\mbox{ cm}^2"),
    (r"15\,\mathrm{cm}^2", r"15\mbox{ cm}^2"),
    (r"15 cm^2", r"15\mbox{ cm}^2"),
    (r"15 \text{ cm}^{2}", r"15\mbox{ cm}^2"),
    (r"5.4", r"5.4 \text{ cents}"),
    (r"5.4 cents", r"5.4 \text{ cents}"),
    (r"x=5", r"5"),
    (r"5", r"x=5"),
    (r"x = 5", r"x=5"),
    (r"5 = x", r"x=5"),
    (r"x=5", r"x = 5.0"),
    (r"(3, \frac{\pi}{2})", r"\left( 3, \frac{\pi}{2} \right)"),
    (r"(3, \pi/2)", r"\left( 3, \frac{\pi}{2} \right)"),
    (r"\left(3,\dfrac{\pi}{2}\right)", r"\left( 3, \frac{\pi}{2} \right)"),
    (r"(3, 0.5\pi)", r"\left( 3, \frac{\pi}{2} \right)"),
    (r"(r,\theta) = (3, \pi/2)", r"\left( 3, \frac{\pi}{2} \right)"),
    (r"-q + p", r"p - q"),
    (r"3*sqrt(13)", r"3\sqrt{13}"),
    (r"3√13", r"3\sqrt{13}"),
    (r"\sqrt{117}", r"3\sqrt{13}"),
    (r"3\sqrt{13} \text{ units}", r"3\sqrt{13}"),
    (r"-5i+6", r"6 - 5i"),
    (r"6-5\mathrm{i}", r"6 - 5i"),
    (r"6 - 5 i", r"6 - 5i"),
    (r"274i + 1", r"1+274i"),
    (r"-2,1", r"1,-2"),
    (r"1, -2", r"1,-2"),
    (r"-2 and 1", r"1,-2"),
    (r"x=1, x=-2", r"1,-2"),
    (r"x = 1 or x = -2", r"1,-2"),
    (r"x=1 \text{ or } x=-2", r"1,-2"),
    (r"\{1,-2\}", r"1,-2"),
    (r"\{-2, 1\}", r"1,-2"),
    (r"x=1,-2", r"1,-2"),
    (r"1 \text{ and } -2", r"1,-2"),
    (r"x \in \{1,-2\}", r"1,-2"),
    (r"7,5,3", r"3, 5, 7"),
    (r"52_{8}", r"52_8"),
    (r"52_{\text{eight}}", r"52_8"),
    (r"52_{\text{base }8}", r"52_8"),
    (r"(52)_8", r"52_8"),
    (r"52 \text{ (base 8)}", r"52_8"),
    (r"52 base 8", r"52_8"),
    (r"4210_5", r"4210_{5}"),
    (r"1+\sqrt{19}, 1-\sqrt{19}", r"1 \pm \sqrt{19}"),
    (r"1-\sqrt{19}, 1+\sqrt{19}", r"1 \pm \sqrt{19}"),
    (r"x = 1 \pm \sqrt{19}", r"1 \pm \sqrt{19}"),
    (r"1 ± √19", r"1 \pm \sqrt{19}"),
    (r"1\pm\sqrt{19}", r"1 \pm \sqrt{19}"),
    (r"\{1+\sqrt{19},1-\sqrt{19}\}", r"1 \pm \sqrt{19}"),
    (r"1+\sqrt{19} \text{ and } 1-\sqrt{19}", r"1 \pm \sqrt{19}"),
    (r"3 + 2\sqrt2, 3 - 2\sqrt2", r"3 \pm 2 \sqrt{2}"),
    (r"-2, 1+\sqrt5, 1-\sqrt5", r"\{1\pm\sqrt{5},-2\}"),
    (r"\{-2,1-\sqrt{5},1+\sqrt{5}\}", r"\{1\pm\sqrt{5},-2\}"),
    (r"Evelyn", r"\text{Evelyn}"),
    (r"evelyn", r"\text{Evelyn}"),
    (r"\textbf{Evelyn}", r"\text{Evelyn}"),
    (r"\text{Evelyn}.", r"\text{Evelyn}"),
    (r"\mathrm{Evelyn}", r"\text{Evelyn}"),
    (r"East", r"\text{east}"),
    (r"\text{an ellipse}", r"\text{ellipse}"),
    (r"even", r"\text{even}"),
    (r"C", r"\text{(C)}"),
    (r"(C)", r"\text{(C)}"),
    (r"\text{C}", r"\text{(C)}"),
    (r"\textbf{(C)}", r"\text{(C)}"),
    (r"\mathbf{(C)}", r"\text{(C)}"),
    (r"\cot(x)", r"\cot x"),
    (r"\cot{x}", r"\cot x"),
    (r"\frac{\cos x}{\sin x}", r"\cot x"),
    (r"\frac{1}{\tan x}", r"\cot x"),
    (r"2(k+1)", r"2k+2"),
    (r"\begin{bmatrix} -1/3 \\ 2/3 \\ 5/3 \end{bmatrix}", r"\begin{pmatrix} -1/3 \\ 2/3 \\ 5/3 \end{pmatrix}"),
    (
        r"\begin{pmatrix} -\frac{1}{3} \\ \frac{2}{3} \\ \frac{5}{3} \end{pmatrix}",
        r"\begin{pmatrix} -1/3 \\ 2/3 \\ 5/3 \end{pmatrix}",
    ),
    (r"\begin{pmatrix}-1/3\\2/3\\5/3\end{pmatrix}", r"\begin{pmatrix} -1/3 \\ 2/3 \\ 5/3 \end{pmatrix}"),
    (
        r"\left(\begin{array}{c} -\frac13 \\ \frac23 \\ \frac53 \end{array}\right)",
        r"\begin{pmatrix} -1/3 \\ 2/3 \\ 5/3 \end{pmatrix}",
    ),
    (
        r"\mathbf{v} = \begin{pmatrix} -1/3 \\ 2/3 \\ 5/3 \end{pmatrix}",
        r"\begin{pmatrix} -1/3 \\ 2/3 \\ 5/3 \end{pmatrix}",
    ),
    (r"\begin{pmatrix}-1&0\\0&-1\end{pmatrix}", r"\begin{pmatrix} -1 & 0 \\ 0 & -1 \end{pmatrix}"),
    (r"ab + 2a + 5b + 10", r"(a+5)(b+2)"),
    (r"(b+2)(a+5)", r"(a+5)(b+2)"),
    (r"3 < x \le 4", r"(3,4]"),
    (r"\left(3,4\right]", r"(3,4]"),
    (r"x \in (3,4]", r"(3,4]"),
    (r"[-2,7]", r"x \in [-2,7]"),
    (r"-2 \le x \le 7", r"x \in [-2,7]"),
    (r"-2 \leq x \leq 7", r"x \in [-2,7]"),
    (r"x∈[-2,7]", r"x \in [-2,7]"),
    (r"x > 2", r"(2,\infty)"),
    (r"(2, +\infty)", r"(2,\infty)"),
    (r"(2,∞)", r"(2,\infty)"),
    (r"(2, infinity)", r"(2,\infty)"),
    (r"x \le 0", r"(-\infty, 0]"),
    (r"(-∞, 0]", r"(-\infty, 0]"),
    (r"(9,36) \cup (0,9)", r"(0,9) \cup (9,36)"),
    (r"(0,9)∪(9,36)", r"(0,9) \cup (9,36)"),
    (r"(2,12)\cup(12,102)", r"(2,12) \cup (12,102)"),
    (r"(-\infty,2)\cup(3,\infty)", r"(-\infty, 2) \cup (3, \infty)"),
    (r"x \in (-\infty,2)\cup(3,\infty)", r"(-\infty, 2) \cup (3, \infty)"),
    (r"x < 2 \text{ or } x > 3", r"(-\infty, 2) \cup (3, \infty)"),
    (r"0.0000672", r".0000672"),
    (r"6.72 \times 10^{-5}", r".0000672"),
    (r"6.72e-5", r".0000672"),
    (r"5x-7y+11z+4=0", r"5x - 7y + 11z + 4 = 0"),
    (r"-5x+7y-11z-4=0", r"5x - 7y + 11z + 4 = 0"),
    (r"5x - 7y + 11z = -4", r"5x - 7y + 11z + 4 = 0"),
    (r"10x - 14y + 22z + 8 = 0", r"5x - 7y + 11z + 4 = 0"),
    (r"2x+3", r"y = 2x + 3"),
    (r"y=3+2x", r"y = 2x + 3"),
    (r"2x - y + 3 = 0", r"y = 2x + 3"),
    (r"f(x) = x^3+3x-6", r"x^3+3x-6"),
    (r"x^3 - 6 + 3x", r"x^3+3x-6"),
    (r"p(x)=x^{3}+3x-6", r"x^3+3x-6"),
    (r"1.8", r"1\frac{4}{5}"),
    (r"\frac{9}{5}", r"1\frac{4}{5}"),
    (r"137.5", r"137 \frac{1}{2}"),
    (r"137\frac12", r"137 \frac{1}{2}"),
    (r"\frac{275}{2}", r"137 \frac{1}{2}"),
    (r"57/160", r".35625"),
    (r"0.35625", r".35625"),
    (r"\frac{11}{20}+\frac{9a}{20}", r"\frac{11+9a}{20}"),
    (r"(9a+11)/20", r"\frac{11+9a}{20}"),
    (r"\left[\frac{\pi^2}{8},\frac{5\pi^2}{4}\right]", r"\left[ \frac{\pi^2}{8}, \frac{5 \pi^2}{4} \right]"),
    (r"(-\sqrt3, \sqrt3)", r"(-\sqrt{3}, \sqrt{3})"),
    (r"x=6, y=31, z=-1", r"(6,31,-1)"),
    (r"6,31,-1", r"(6,31,-1)"),
    (r"6r^2 - 24 - 4r", r"6r^2-4r-24"),
    (r"2(3r^2-2r-12)", r"6r^2-4r-24"),
    (r"\frac{1}{\sqrt{3}}", r"\frac{\sqrt{3}}{3}"),
    (r"\frac{20000}{\pi} \text{ cm}", r"\frac{20000}{\pi}"),
    (r"288\pi", r"288 \pi"),
    (r"288 pi", r"288 \pi"),
    (r"288π", r"288 \pi"),
    (r"288\pi \text{ cubic inches}", r"288 \pi"),
    (r"5r^{5}", r"5r^5"),
    (r"5 \cdot r^5", r"5r^5"),
    (r"2\cdot\sqrt{5}", r"2\sqrt{5}"),
    (r"2 \times \sqrt{5}", r"2\sqrt{5}"),
    (r"25\%", r"25"),
    (r"25", r"25\%"),
    (r"25\%", r"\frac{1}{4}"),
    (r"25%", r"0.25"),
    (r"025", r"25"),
    (r"\text{The answer is } 5", r"5"),
    (r"\boxed{5}", r"5"),
    (r"5\text{ apples}", r"5"),
    (r"5 apples", r"5"),
    (r"\angle ABC = 30^\circ", r"30^\circ"),
    (r"A = 30", r"30^\circ"),
    (r"\sin x = \frac12", r"\frac12"),
    (r"a+b=14", r"14"),
    (r"\frac{10}{2} = 5", r"5"),
    (r"2 + 3 = 5", r"5"),
    (r"n!", r"n!"),
    (r"\frac{n(n+1)}{2}", r"\frac{n^2+n}{2}"),
    (r"2^{10}", r"1024"),
    (r"\binom{5}{2}", r"10"),
    (r"5!", r"120"),
    (r"\log_2 8", r"3"),
    (r"e^{i\pi}", r"-1"),
    (r"\frac{\sqrt{21}}{5}", r"\frac{1}{5}\sqrt{21}"),
    (r"0.333", r"\frac{333}{1000}"),
    (r"\frac13", r"0.333"),
    (r"0.33333333", r"\frac13"),
    (r"3.141592653589793", r"\pi"),
]

DIFFERENT = [
    (r"(1,2)", r"[1,2]"),
    (r"[1,2]", r"(1,2)"),
    (r"(1,2]", r"[1,2)"),
    (r"(2,1)", r"(1,2)"),
    (r"\{1,2\}", r"(1,2)"),
    (r"(1,2)", r"\{1,2\}"),
    (r"1,2", r"(1,2)"),
    (r"(1,2)", r"1,2"),
    (r"0.333", r"1/3"),
    (r"0.333", r"\frac{1}{3}"),
    (r"0.33", r"\frac13"),
    (r".67", r"\frac23"),
    (r"7.14", r"\sqrt{51}"),
    (r"3.14", r"\pi"),
    (r"22/7", r"\pi"),
    (r"y=5", r"x=5"),
    (r"x=-5", r"x=5"),
    (r"2x=5", r"5"),
    (r"-5", r"x=5"),
    (r"2516", r"2516_8"),
    (r"1358", r"2516_8"),
    (r"2516_7", r"2516_8"),
    (r"2516_8", r"2516"),
    (r"2516_{10}", r"2516_8"),
    (r"1 + \sqrt{19}", r"1 \pm \sqrt{19}"),
    (r"1 \pm \sqrt{19}", r"1+\sqrt{19}"),
    (r"1 \mp \sqrt{91}", r"1 \pm \sqrt{19}"),
    (r"1,2", r"1,-2"),
    (r"1", r"1,-2"),
    (r"-2", r"1,-2"),
    (r"1,-2,3", r"1,-2"),
    (r"1,1", r"1"),
    (r"1,1,-2", r"1,-2"),
    (r"3,5", r"3, 5, 7"),
    (r"Evelyn or Carla", r"\text{Evelyn}"),
    (r"\text{Not Evelyn}", r"\text{Evelyn}"),
    (r"Evelyne", r"\text{Evelyn}"),
    (r"Carla", r"\text{Evelyn}"),
    (r"odd", r"\text{even}"),
    (r"not even", r"\text{even}"),
    (r"\text{(B)}", r"\text{(C)}"),
    (r"B or C", r"\text{(C)}"),
    (r"west", r"\text{east}"),
    (r"91", r"90^\circ"),
    (r"90 \text{ radians}", r"90^\circ"),
    (r"5.4 \text{ dollars}", r"5.4 \text{ cents}"),
    (r"864 \text{ ft}^2", r"864 \mbox{ inches}^2"),
    (r"15 \text{ m}^2", r"15\mbox{ cm}^2"),
    (r"15^2", r"15\mbox{ cm}^2"),
    (r"\begin{pmatrix} -1/3 \\ 2/3 \\ -5/3 \end{pmatrix}", r"\begin{pmatrix} -1/3 \\ 2/3 \\ 5/3 \end{pmatrix}"),
    (r"\begin{pmatrix} -1/3 & 2/3 & 5/3 \end{pmatrix}", r"\begin{pmatrix} -1/3 \\ 2/3 \\ 5/3 \end{pmatrix}"),
    (r"\begin{pmatrix} 2/3 \\ -1/3 \\ 5/3 \end{pmatrix}", r"\begin{pmatrix} -1/3 \\ 2/3 \\ 5/3 \end{pmatrix}"),
    (r"\begin{vmatrix} -1 & 0 \\ 0 & -1 \end{vmatrix}", r"\begin{pmatrix} -1 & 0 \\ 0 & -1 \end{pmatrix}"),
    (r"\begin{pmatrix} 1 & 0 \\ 0 & 1 \end{pmatrix}", r"\begin{pmatrix} -1 & 0 \\ 0 & -1 \end{pmatrix}"),
    (r"3 \le x \le 4", r"(3,4]"),
    (r"x \ge 2", r"(2,\infty)"),
    (r"x < 2", r"(2,\infty)"),
    (r"(2,12)", r"(2,12) \cup (12,102)"),
    (r"(2,12102)", r"(2,12) \cup (12,102)"),
    (r"(2,102)", r"(2,12) \cup (12,102)"),
    (r"(0,9] \cup (9,36)", r"(0,9) \cup (9,36)"),
    (r"5x - 7y + 11z - 4 = 0", r"5x - 7y + 11z + 4 = 0"),
    (r"5x - 7y + 11z + 4", r"5x - 7y + 11z + 4 = 0"),
    (r"0", r"5x - 7y + 11z + 4 = 0"),
    (r"0 = 0", r"5x - 7y + 11z + 4 = 0"),
    (r"3x + 2", r"y = 2x + 3"),
    (r"x = 2y + 3", r"y = 2x + 3"),
    (r".000067", r".0000672"),
    (r".0000668", r".0000672"),
    (r".67", r".0000672"),
    (r"5^\circ", r"50"),
    (r"5", r"50"),
    (r"50", r"5"),
    (r"-5", r"5"),
    (r"1,234", r"234"),
    (r"1234", r"234"),
    (r"3.75", r"75"),
    (r"1/2", r"2"),
    (r"1/2", r"1"),
    (r"\frac12", r"\frac13"),
    (r"\frac{2}{1}", r"\frac{1}{2}"),
    (r"1\frac{4}{5}", r"\frac{14}{5}"),
    (r"1 \frac{4}{5}", r"\frac45"),
    (r"3\sqrt{13}", r"3\sqrt{31}"),
    (r"\sqrt{3 \cdot 13}", r"3\sqrt{13}"),
    (r"5 or 6", r"5"),
    (r"5 \text{ or } 6", r"5"),
    (r"5, 6", r"5"),
    (r"56", r"5"),
    (r"5x", r"5"),
    (r"5 x", r"5"),
    (r"5i", r"5"),
    (r"5\pi", r"5"),
    (r"p+q", r"p-q"),
    (r"q-p", r"p-q"),
    (r"6+5i", r"6-5i"),
    (r"x^5", r"x^4"),
    (r"", r"0"),
    (r"0", r"\pi"),
    (r"x", r"y"),
    (r"n", r"5"),
    (r"I don't know", r"5"),
    (r"unknown", r"0"),
    (r"\text{undefined}", r"0"),
    (r"\infty", r"0"),
    (r"-\infty", r"\infty"),
    (r"\frac{1}{0}", r"0"),
    (r"\frac{0}{0}", r"0"),
    (r"\emptyset", r"0"),
    (r"\{\}", r"0"),
    (r"\text{none}", r"0"),
    (r"True", r"1"),
    (r"nan", r"0"),
    (r"nan", r"nano"),
    (r"inf", r"5"),
    (r"5 6", r"11"),
    (r"5 6", r"56"),
    (r"5 6", r"30"),
    (r"25\%", r"\frac{1}{25}"),
    (r"25\%", r"0.025"),
    (r"100(25\%)", r"0.25"),
    (r"17.5", r"17"),
    (r"17.0000001", r"17"),
    (r"16.9999999", r"17"),
    (r"2^{10}", r"1000"),
    (r"(5) + 1", r"5"),
    (r"5 + x", r"5"),
    (r"5 = 6", r"5"),
    (r"(-2,1)", r"(-2,-1)"),
    (r"(6,31)", r"(6,31,-1)"),
    (r"6,-1,31", r"(6,31,-1)"),
    (r"(8,-2)", r"(-2,8)"),
    (r"32348\text{ cents}", r"\$32,\!348"),
    (r"32.348", r"\$32,\!348"),
    (r"10.080", r"10,\!080"),
    (r"80", r"10,\!080"),
    (r"10, 80", r"10,\!080"),
    (r"\cot y", r"\cot x"),
    (r"\tan x", r"\cot x"),
    (r"58,50", r"58,500"),
    (r"58.5", r"58,500"),
]

REPLIES = [  # (reply, gold, whether the lenient reading is right)
    ("The final answer is $\\boxed{\\frac{3}{4}}$.", r"\frac34", True),
    ("Therefore, the answer is $\\frac{3}{4}$.", r"\frac34", True),
    ("The answer is 3/4.", r"\frac34", True),
    ("The answer is $x = \\frac{3}{4}$.", r"\frac34", True),
    ("The answer is\n$$\\frac{3}{4}.$$", r"\frac34", True),
    ("\\boxed{\\dfrac{3}{4}}", r"\frac34", True),
    ("\\boxed{\\text{3/4}}", r"\frac34", True),
    ("\\boxed{0.75}", r"\frac34", True),
    ("\\boxed{75\\%}", r"\frac34", True),
    ("\\boxed{\\frac{3}{4}} or \\boxed{\\frac{1}{4}}", r"\frac34", False),
    ("\\boxed{\\frac{3}{4}", r"\frac34", False),
    ("so $\\boxed{(3,4]}$", r"(3,4]", True),
    ("so $\\boxed{(3,4)}$", r"(3,4]", False),
    ("The answer is $(3,4]$.", r"(3,4]", True),
    ("The answer is (3, 4].", r"(3,4]", True),
    ("The solution set is $(3,4]$.", r"(3,4]", True),
    ("#### \\frac{3}{4}", r"\frac34", True),
    ("#### $\\frac{3}{4}$", r"\frac34", True),
    ("#### \\boxed{\\frac{3}{4}}", r"\frac34", True),
    ("#### The answer is $\\frac{3}{4}$.", r"\frac34", True),
    ("#### 3/4 of the cake", r"\frac34", False),
    ("#### I don't know", r"\frac34", False),
    ("I do not know.", r"0", False),
    ("", r"0", False),
    ("\\boxed{}", r"0", False),
    ("The answer is $1$ and $-2$.", r"1,-2", True),
    ("The answer is $x = 1$ or $x = -2$.", r"1,-2", True),
    ("The solutions are $x=1$ and $x=-2$.", r"1,-2", False),
    ("\\boxed{1} and \\boxed{-2}", r"1,-2", True),
    ("\\boxed{x=1 \\text{ or } x=-2}", r"1,-2", True),
    ("\\boxed{\\text{Evelyn}}", r"\text{Evelyn}", True),
    ("The answer is Evelyn.", r"\text{Evelyn}", True),
    ("The answer is **Evelyn**.", r"\text{Evelyn}", True),
    ("The answer is Carla, not Evelyn.", r"\text{Evelyn}", False),
    ("The answer is Evelyn, because she is fastest.", r"\text{Evelyn}", True),
    ("The answer is \\text{Evelyn}.", r"\text{Evelyn}", True),
    ("The answer is $90^\\circ$.", r"90^\circ", True),
    ("The answer is 90 degrees.", r"90^\circ", True),
    ("So the angle is $90^\\circ$.", r"90^\circ", True),
    ("The answer is $15\\text{ cm}^2$.", r"15\mbox{ cm}^2", True),
    ("The answer is 15 cm$^2$.", r"15\mbox{ cm}^2", True),
    ("The answer is $15$ square centimeters.", r"15\mbox{ cm}^2", True),
    ("The answer is \\$36.", r"\$36", True),
    ("The answer is $36.", r"\$36", True),
    ("\\boxed{\\$36}", r"\$36", True),
    ("$\\boxed{\\$36}$", r"\$36", True),
    ("\\boxed{36 \\text{ dollars}}", r"\$36", True),
    ("The answer is $5$, not $6$.", r"5", True),
    ("The answer is not $5$.", r"5", False),
    ("The answer is $5$ or $6$.", r"5", False),
    ("The answer is 5 or 6.", r"5", False),
    ("The answer is \\(5\\).", r"5", True),
    ("Answer: $p - q$", r"p - q", True),
    ("Answer: p - q", r"p - q", True),
    ("The answer is $\\boxed{p-q}$, where $p>q$.", r"p - q", True),
    ("Thus $x = 5$.", r"5", True),
    ("Thus x = 5.", r"5", True),
    ("We have $2+3=5$.", r"5", True),
    ("\\boxed{2+3=5}", r"5", True),
    ("The answer is $2516_8$.", r"2516_8", True),
    ("The answer is $2516$.", r"2516_8", False),
    ("<think>\\boxed{4}</think>\\boxed{5}", r"5", True),
    ("\\boxed{4}. Wait, that is wrong. \\boxed{5}", r"5", True),
    ("\\boxed{4}. Wait, that is wrong.", r"4", False),
    ("The answer is $3\\sqrt{13}$ units.", r"3\sqrt{13}", True),
    ("The answer is 3√13.", r"3\sqrt{13}", True),
    ("The answer is $3\\sqrt{13} \\approx 10.82$.", r"3\sqrt{13}", True),
    ("\\boxed{3\\sqrt{13} \\approx 10.82}", r"3\sqrt{13}", True),
    ("\\boxed{\\approx 10.82}", r"3\sqrt{13}", False),
    ("\\boxed{10.8166538}", r"3\sqrt{13}", True),
    ("\\boxed{y = 2x+3}", r"y = 2x + 3", True),
    (
        "\\boxed{\\begin{pmatrix} -2 \\\\ -14 \\\\ -7 \\end{pmatrix}}",
        r"\begin{pmatrix} -2 \\ -14 \\ -7 \end{pmatrix}",
        True,
    ),
    (
        "The answer is\n\\[\\begin{pmatrix} -2 \\\\ -14 \\\\ -7 \\end{pmatrix}.\\]",
        r"\begin{pmatrix} -2 \\ -14 \\ -7 \end{pmatrix}",
        True,
    ),
    (
        "The answer is $\\begin{pmatrix} -2 \\\\ -14 \\\\ 7 \\end{pmatrix}$",
        r"\begin{pmatrix} -2 \\ -14 \\ -7 \end{pmatrix}",
        False,
    ),
    ("\\boxed{\\text{(C)}}", r"\text{(C)}", True),
    ("The answer is (C).", r"\text{(C)}", True),
    ("The answer is C.", r"\text{(C)}", True),
    ("The answer is (B).", r"\text{(C)}", False),
    ("\\boxed{10,080}", r"10,\!080", True),
    ("\\boxed{10080.}", r"10,\!080", True),
    ("\\boxed{x \\in [-2,7]}", r"x \in [-2,7]", True),
    ("\\boxed{-2 \\leq x \\leq 7}", r"x \in [-2,7]", True),
    ("\\boxed{5,\\text{ and } 6}", r"5,6", True),
    ("\\boxed{6 \\text{ and } 5}", r"5,6", True),
    ("\\boxed{\\sqrt{2}/2}", r"\frac{\sqrt{2}}{2}", True),
    ("\\boxed{\\frac{1}{\\sqrt{2}}}", r"\frac{\sqrt{2}}{2}", True),
    ("\\boxed{\\frac{\\sqrt2}2}", r"\frac{\sqrt{2}}{2}", True),
    ("\\boxed{\\text{No solution}}", r"0", False),
    ("\\boxed{\\infty}", r"\infty", True),
    ("\\boxed{\\emptyset}", r"\emptyset", True),
    ("\\boxed{x^2+2x+1}", r"(x+1)^2", True),
    ("\\boxed{x^2+2x+2}", r"(x+1)^2", False),
    ("\\boxed{(x+1)^{2}}", r"(x+1)^2", True),
]


def problem(answer: str) -> Problem:
    return Problem(id="p", question="?", answer=answer, kind="latex")


@pytest.mark.parametrize(("prediction", "gold"), EQUAL)
def test_one_value_in_two_spellings_is_equal(prediction: str, gold: str) -> None:
    assert same_latex(prediction, gold)


@pytest.mark.parametrize(("prediction", "gold"), DIFFERENT)
def test_what_only_looks_alike_differs(prediction: str, gold: str) -> None:
    assert not same_latex(prediction, gold)


@pytest.mark.parametrize(("reply", "gold", "right"), REPLIES)
def test_a_reply_is_right_if_its_last_announced_answer_is(reply: str, gold: str, right: bool) -> None:
    assert score(reply, problem(gold)).correct is right


def test_strict_reads_the_first_marked_line_only() -> None:
    both = score_both("\\boxed{4}\n#### $\\frac{3}{4}$\n#### 5", problem("0.75"))
    assert (both.strict.prediction, both.strict.correct) == ("\\frac{3}{4}", True)
    both = score_both("The answer is $\\frac34$.", problem("0.75"))
    assert (both.strict.prediction, both.strict.correct, both.lenient.correct) == (None, False, True)


def test_every_gold_answer_of_math500_equals_itself_in_a_box_and_in_words() -> None:
    folder = os.environ.get("AGENT_GSPO_DATA")
    if not folder or not (path := Path(folder, "math500", "test.jsonl")).exists():
        pytest.skip("AGENT_GSPO_DATA names no folder with math500/test.jsonl")
    golds = [json.loads(line)["answer"] for line in path.read_text().splitlines()]
    assert len(golds) == 500
    for gold in golds:
        assert same_latex(gold, gold)
        for reply in (
            f"So we are done. The final answer is $\\boxed{{{gold}}}$. I hope it is correct.",
            f"Therefore\n\\[\\boxed{{{gold}}}\\]",
            f"The answer is ${gold}$.",
            f"**Answer:**\n$$\n{gold}\n$$",
            f"#### {gold}",
        ):
            assert is_correct(read_answer(reply, problem(gold)), problem(gold)), reply


def test_a_gold_answer_of_math500_never_equals_another_value() -> None:
    folder = os.environ.get("AGENT_GSPO_DATA")
    if not folder or not (path := Path(folder, "math500", "test.jsonl")).exists():
        pytest.skip("AGENT_GSPO_DATA names no folder with math500/test.jsonl")
    golds = list(dict.fromkeys(json.loads(line)["answer"] for line in path.read_text().splitlines()))
    known = {frozenset(pair) for pair in (("-2,1", "1,-2"), ("2 \\sqrt{5}", "2\\sqrt{5}"), ("5", "x=5"))}
    plain = [normalise_latex(gold) for gold in golds]
    values = [(gold, latex._without_unit(tidy)[0]) for gold, tidy in zip(golds, plain, strict=True)]
    neighbours = [pair for pair in pairwise(values) if pair[0][1] != pair[1][1]]
    for (gold, _), (other, _) in neighbours:
        if frozenset((gold, other)) not in known and latex._number(gold) != latex._number(other):
            assert not same_latex(other, gold), (other, gold)


def test_an_empty_gold_answer_or_limit_is_refused() -> None:
    with pytest.raises(ValueError, match="gold answer is empty"):
        same_latex("5", " ")
    with pytest.raises(ValueError, match="problem 'p'"):
        is_correct("5", problem(""))
    with pytest.raises(ValueError, match="positive limit"):
        same_latex("5", "6", seconds=0)


def test_a_batch_gives_one_verdict_for_each_pair() -> None:
    assert same_latex_batch([("2x", "x+x"), ("2x", "x"), ("", "5")]) == [True, False, False]


def test_a_tower_of_powers_is_stopped_counted_and_logged_math_verify_65(caplog: pytest.LogCaptureFixture) -> None:
    same_latex("2x", "x+x")  # the worker is up
    before = overruns()
    with caplog.at_level(logging.WARNING):
        assert not same_latex(TOWER, "5", seconds=0.5)
    assert overruns() == before + 1
    assert "stopped at its limit" in caplog.text
    assert same_latex("x+x", "2x")  # and a new worker answers


def test_comparisons_work_in_threads_math_verify_55() -> None:
    with ThreadPoolExecutor(8) as pool:
        verdicts = list(pool.map(lambda i: same_latex(f"{i}x + x", f"{i + 1}x"), range(2, 34)))
    assert all(verdicts)


def _compare(queue: multiprocessing.Queue[bool]) -> None:
    queue.put(same_latex("2x", "x+x") and not same_latex("3x", "x+x"))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_comparisons_work_in_a_daemon_which_may_have_no_children(method: str) -> None:
    same_latex("2x", "x+x")  # a worker that the child must not share
    context = multiprocessing.get_context(method)
    queue = context.Queue()
    process = context.Process(target=_compare, args=(queue,), daemon=True)
    process.start()
    assert queue.get(timeout=180)
    process.join(60)
    assert same_latex("2x", "x+x")


def test_a_worker_that_is_killed_is_replaced() -> None:
    assert same_latex("2x", "x+x")
    process = latex._WORKER._process
    assert process is not None
    process.kill()
    process.wait()
    assert same_latex("2x", "x+x")


@pytest.mark.parametrize("ending", ["", "import os; os.kill(os.getpid(), 9)"])
def test_no_worker_outlives_its_owner(ending: str) -> None:
    code = (
        "from agent_gspo_core.scoring import latex; latex.same_latex('2x', 'x+x');"
        "print(latex._WORKER._process.pid, flush=True);" + ending
    )
    owner = subprocess.run([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=300)
    pid = int(owner.stdout)
    for _ in range(200):
        if not _alive(pid):
            return
        time.sleep(0.05)
    pytest.fail(f"the worker {pid} still runs ten seconds after its owner ended")


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{pid}/stat")
    return not state.exists() or ") Z" not in state.read_text()


def test_hostile_answers_are_only_wrong() -> None:
    for answer in (
        "(" * 700, "\\frac{" * 200, "\\sqrt{" * 99 + "2" + "}" * 99, "9" * 1400, "," * 1400, "\\pm" * 300,
        "\x00", "__import__('os')", "x" * 100_000, "\\begin{pmatrix}" * 50, "=" * 500, "1!!!!!!!", "\\sum", "",
    ):  # fmt: skip
        assert not same_latex(answer, "x+5", seconds=1), answer[:40]


def test_memory_is_bounded() -> None:
    assert not same_latex("x^{10^7}", "(x+1)^{10^6}", seconds=1)
    assert same_latex("2x", "x+x")


def test_replies_of_a_million_characters_are_read() -> None:
    for unit in ("$", "\\boxed{1} ", "\\[", "answer is $", "wait. ", "{"):
        assert read_latex(unit * (1_000_000 // len(unit)) + "\n\\boxed{5}") == "5"
