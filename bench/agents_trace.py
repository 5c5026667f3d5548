# SPDX-License-Identifier: MIT
"""The trace that bench/agents replays: what two coding agents and their client ask, made from a seed.

Agent A has a long prompt of instructions and tools, and turns that bring a tool's result each. In
between the client asks for titles (another prompt, the same server), a second agent with a prompt of
its own takes turns, the user edits earlier messages, tries a branch, hangs up once and asks again,
and the server is restarted. Answers are those of the server that is measured: the next prompt has
them, as that of a real client.

Tools are described in the system prompt and results come back as user messages, as agents do with
models that have no tool calls of their own: so one trace runs on every model. Standard library only.
"""
import random

import benchlib

TITLE_RULES = ("You name conversations. Answer with a title of at most five words for what the user "
               "says, without quotes, without a full stop, in the language of the text.")


class Sizes:
    """In tokens, about. turn: a message of A; it differs by half from turn to turn."""

    def __init__(self, system, turn, turns, restart_after, second_system, answer):
        self.system, self.turn, self.turns, self.restart_after = system, turn, turns, restart_after
        self.second_system, self.answer = second_system, answer
        # Where things happen, as parts of the whole: 25 turns have them at 8, 12, 18, 21.
        self.edits = {max(3, turns * 8 // 25), max(4, turns * 18 // 25)}
        self.branch = max(2, turns * 12 // 25)
        self.abort = max(2, turns * 21 // 25)


def words(rng, n):
    return " ".join(rng.choice(benchlib.WORDS) for _ in range(max(1, n)))


def tool(rng, number):
    """A tool as clients describe them: about 60 tokens."""
    name = "%s_%s" % (rng.choice(benchlib.WORDS), rng.choice(benchlib.WORDS))
    return ('{"name": "%s_%d", "description": "%s.", "parameters": {"type": "object", "properties": '
            '{"path": {"type": "string"}, "limit": {"type": "integer"}}, "required": ["path"]}}'
            % (name, number, words(rng, 12)))


def system_prompt(name, n_tokens, tokens_of):
    """Rules and tools of n_tokens tokens, as tokens_of counts them."""
    rng = random.Random("system " + name)
    parts = ["You are %s, an agent that works in a repository with the tools below." % name]
    while tokens_of("\n".join(parts)) < n_tokens:
        parts += [tool(rng, len(parts) + i) for i in range(8)] + [words(rng, 60) + "."]
    while tokens_of("\n".join(parts)) > n_tokens and len(parts) > 1:
        parts.pop()
    short = n_tokens - tokens_of("\n".join(parts))
    return "\n".join(parts + [words(rng, short)])


class Step:
    """One request. base: messages before its own one, without system; own: the text it adds.
    keeps: its answer becomes part of the agent's history. hang_up: after the first words."""

    def __init__(self, label, agent, system, base, own, keeps=True, hang_up=False):
        self.label, self.agent, self.system, self.base, self.own = label, agent, system, base, own
        self.keeps, self.hang_up = keeps, hang_up

    def messages(self):
        return ([{"role": "system", "content": self.system}] + self.base
                + [{"role": "user", "content": self.own}])


class Trace:
    """Yields Steps, and None where the server is to be restarted; after each the answer is to be
    given to `answered`."""

    def __init__(self, sizes, tokens_of):
        self.sizes = sizes
        self.system = {"A": system_prompt("A", sizes.system, tokens_of),
                       "B": system_prompt("B", sizes.second_system, tokens_of)}
        self.rng = random.Random("turns")
        self.texts = {}

    def text(self, agent, turn):
        """The same for every server, whatever was asked before."""
        rng = random.Random("%s %s" % (agent, turn))
        n = int(self.sizes.turn * (0.5 + rng.random()))
        return "[result of read_file %s.c]\n%s" % (words(rng, 1), words(rng, n - 12))

    def turn(self, history, agent, name, own=None, **options):
        return Step(name, agent, self.system[agent], list(history[agent]),
                    own or self.text(agent, name), **options)

    def steps(self):
        s, history = self.sizes, {"A": [], "B": []}
        for i in range(1, s.turns + 1):
            name = "A%d" % i
            if i in s.edits: # the user changes the message two turns back: what came after it goes
                del history["A"][-4:]
                name += " edit"
            yield Step("title %d" % i, "title", TITLE_RULES, [], "%s" % self.text("A", name))
            if i == s.branch:
                yield self.turn({"A": history["A"][:-4]}, "A", name + " branch", keeps=False)
            step = self.turn(history, "A", name)
            if i == s.abort:
                yield self.turn(history, "A", name + " hang-up", own=step.own, keeps=False, hang_up=True)
            yield from self.keep(history, step)
            if i % 2 == 0:
                yield from self.keep(history, self.turn(history, "B", "B%d" % (i // 2)))
            if i == s.restart_after:
                yield None

    def keep(self, history, step):
        yield step
        history[step.agent] += [{"role": "user", "content": step.own},
                                {"role": "assistant", "content": step.answer}]


class Seen:
    """Everything that was asked and answered so far, as text; finds what a prompt begins with."""

    def __init__(self):
        self.texts = []  # lists of (role, content); the last one may be an answer without its end

    def add(self, messages, answer):
        self.texts.append([(m["role"], m["content"]) for m in messages] + [("assistant", answer)])

    def beginning(self, messages):
        """The longest beginning of messages that was seen, as messages of which the last is cut; []
        when nothing was."""
        best, best_cut = (0, 0), []
        for text in self.texts:
            n = 0
            while n < len(messages) and n < len(text) and text[n] == (messages[n]["role"],
                                                                     messages[n]["content"]):
                n += 1
            chars = 0
            if n < len(messages) and n < len(text) and text[n][0] == messages[n]["role"]:
                a, b = text[n][1], messages[n]["content"]
                while chars < min(len(a), len(b)) and a[chars] == b[chars]:
                    chars += 1
            if (n, chars) > best:
                best = (n, chars)
                best_cut = messages[:n]
                if n < len(messages) and n < len(text) and text[n][0] == messages[n]["role"]:
                    best_cut = best_cut + [{"role": text[n][0], "content": messages[n]["content"][:chars]}]
        return best_cut
