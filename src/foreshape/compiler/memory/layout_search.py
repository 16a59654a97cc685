"""Exact search for a layout within a height, after MiniMalloc (Moffitt, ASPLOS 2023); written anew from the paper's ideas.

Any layout can be pushed down until each buffer lies on the ground or on another one. Placing the buffers in order of their offsets finds it, each at the
least offset above the ones below it. The search tries such orders, depth first:

- offsets never fall from one placement to the next, and equal ones follow the given order (one order per layout);
- a buffer is not placed above a gap that another one fits;
- a buffer with nothing left above it is placed for good;
- every section's remaining buffers must fit: stacked by their least offsets, they must end within the height;
- a buffer that cannot be the lowest of a section is at least as high as the lowest end of another (`visits` bounds the depth of this rule);
- where no remaining buffer crosses between two sections, both sides are solved apart, and the first failure ends both.

`search_layout` is plain Python over named columns: lists in the interpreter, arrays for numba, some hundred times faster.
"""

from __future__ import annotations

from typing import Any, NamedTuple

FOUND, IMPOSSIBLE, STOPPED = 1, 0, 2
_NEVER = 2**62


class Problem(NamedTuple):
    """The buffers in a strategy's order: their sections and bytes, and two lists of lists, ``near[near_at[b]:near_at[b + 1]]`` each."""

    first: Any
    end: Any
    size: Any
    near_at: Any
    near: Any
    """The buffers alive with a buffer."""
    alive_at: Any
    alive: Any
    """The buffers alive in a section."""


class Rules(NamedTuple):
    """The height to reach, the most work, and two fields of the strategy."""

    height: int
    work: int
    anew: bool
    visits: int


class Placement(NamedTuple):
    """A partial layout. Every change of it is on the trail."""

    least: Any
    """The least offset of a buffer above the placed ones."""
    offset: Any
    """The offset of a buffer; -1: not placed."""
    total: Any
    """The bytes to place in a section."""
    cuts: Any
    """The remaining buffers alive in a section and in the next."""
    rank: Any
    """The order among equal offsets."""


class Trail(NamedTuple):
    """The changes of the state, to undo them: the column, the place in it, and the number before."""

    column: Any
    at: Any
    old: Any


_LEAST, _OFFSET, _TOTAL, _CUTS, _RANK = range(5)


class Frames(NamedTuple):
    """The depth-first search, a number for each depth. A frame solves a range of sections."""

    opens: Any
    closes: Any
    floor: Any
    """No offset below this is chosen; of equal ones none below `lowest_rank`."""
    lowest_rank: Any
    first_choice: Any
    end_choice: Any
    next_choice: Any
    trail: Any
    """The length of the trail before a choice."""
    first_member: Any
    end_member: Any
    first_range: Any
    """The ranges of sections to solve after a choice."""
    end_range: Any
    next_range: Any
    for_good: Any
    """1: no other choice is tried, since nothing is left above this one."""


class Lists(NamedTuple):
    """The members, the choices and the ranges (first, end) of all frames, one behind the other."""

    members: Any
    choices: Any
    ranges: Any


class Scratch(NamedTuple):
    """Notes of one step: the sections to look at, each marked with the step's stamp; and buffers with their sort keys."""

    mark: Any
    queue: Any
    keys: Any
    which: Any


def search_layout(problem: Any, rules: Any, state: Any, trail: Any, frames: Any, lists: Any, scratch: Any) -> tuple[int, int]:
    """Search offsets within the height, into ``state.offset``; return FOUND, IMPOSSIBLE or STOPPED, and the work done.

    The arguments are plain tuples of the columns above: numba writes their types beside the machine code, where no class of ours should stand.
    """
    return _search(Problem(*problem), Rules(*rules), Placement(*state), Trail(*trail), Frames(*frames), Lists(*lists), Scratch(*scratch))


def _search(problem: Problem, rules: Rules, state: Placement, trail: Trail, frames: Frames, lists: Lists, scratch: Scratch) -> tuple[int, int]:
    _begin(problem, state, frames, lists, scratch)
    room = len(trail.at) - 6 * len(problem.first) - 8 * len(state.total)
    changes, done, stamp, depth, choosing, placing = 0, 0, 0, 0, True, True
    while True:
        if choosing:
            done += 1 + (frames.end_member[depth] - frames.first_member[depth]) // 16
            if done > rules.work or changes > room:
                return STOPPED, done
            _list_choices(problem, state, frames, lists, depth)
            frames.trail[depth] = changes
            choosing, placing = False, True
        elif placing:
            changes = _take_back(state, trail, changes, frames.trail[depth])
            chosen = frames.next_choice[depth]
            if chosen == frames.end_choice[depth] or frames.for_good[depth] == 1:
                depth -= 1
                if depth < 0:
                    return IMPOSSIBLE, done
                continue
            b = lists.choices[chosen]
            frames.next_choice[depth] = chosen + 1
            done += 1 + (problem.near_at[b + 1] - problem.near_at[b]) // 16
            stamp += 2
            changes, waiting, last = _place(problem, state, trail, scratch, b, changes, stamp)
            if last:
                frames.for_good[depth] = 1
            if not _has_room(rules, state, frames, depth, state.offset[b]):
                continue
            fits, changes, looked = _fits(problem, rules, state, trail, scratch, state.offset[b], changes, stamp, waiting, room)
            done += looked
            if not fits:
                continue
            changes = _divide(problem, state, trail, frames, lists, b, changes, depth)
            if rules.anew and frames.end_range[depth] > frames.first_range[depth] + 2:
                changes = _order_anew(problem, state, trail, frames, lists, scratch, changes, depth)
            placing = False
        elif frames.next_range[depth] == frames.end_range[depth]:  # the choice of this frame stands, and the rest is solved
            depth -= 1
            if depth < 0:
                return FOUND, done
        elif _descend(problem, rules, state, frames, lists, depth):
            depth += 1
            choosing = True


def _begin(problem: Problem, state: Placement, frames: Frames, lists: Lists, scratch: Scratch) -> None:
    """Place nothing, and make the first frame: all sections and all buffers."""
    for s in range(len(state.total)):
        state.total[s] = 0
        state.cuts[s] = 0
        scratch.mark[s] = 0
    for b in range(len(problem.first)):
        state.least[b] = 0
        state.offset[b] = -1
        state.rank[b] = b
        lists.members[b] = b
        for s in range(problem.first[b], problem.end[b]):
            state.total[s] += problem.size[b]
            if s + 1 < problem.end[b]:
                state.cuts[s] += 1
    for column in frames:
        column[0] = 0
    frames.closes[0], frames.end_member[0] = len(state.total), len(problem.first)


def _list_choices(problem: Problem, state: Placement, frames: Frames, lists: Lists, depth: int) -> None:
    """List the buffers to place next, the lowest first."""
    members, choices, size, least, rank = lists.members, lists.choices, problem.size, state.least, state.rank
    gap = _NEVER
    for i in range(frames.first_member[depth], frames.end_member[depth]):
        b = members[i]
        gap = min(gap, least[b] + size[b])
    start = frames.first_choice[depth]
    stop = start
    floor, lowest_rank = frames.floor[depth], frames.lowest_rank[depth]
    for i in range(frames.first_member[depth], frames.end_member[depth]):
        b = members[i]
        offset = least[b]
        if offset < gap and (offset > floor or (offset == floor and rank[b] >= lowest_rank)):
            j = stop
            while j > start and (least[choices[j - 1]] > offset or (least[choices[j - 1]] == offset and rank[choices[j - 1]] > rank[b])):
                choices[j] = choices[j - 1]
                j -= 1
            choices[j] = b
            stop += 1
    frames.end_choice[depth] = stop
    frames.next_choice[depth] = start
    frames.for_good[depth] = 0


def _take_back(state: Placement, trail: Trail, changes: int, until: int) -> int:
    """Take back the changes behind ``until``."""
    while changes > until:
        changes -= 1
        state[trail.column[changes]][trail.at[changes]] = trail.old[changes]
    return changes


def _place(problem: Problem, state: Placement, trail: Trail, scratch: Scratch, b: int, changes: int, stamp: int) -> tuple[int, int, bool]:
    """Place a buffer at its least offset, and raise the buffers alive with it. Return the changes, the sections to look at, and whether none is left above."""
    first, end, near, least, offset, total = problem.first, problem.end, problem.near, state.least, state.offset, state.total
    column, index, previous, mark, queue = trail.column, trail.at, trail.old, scratch.mark, scratch.queue
    size = problem.size[b]
    top = least[b] + size
    offset[b] = least[b]
    column[changes], index[changes], previous[changes] = _OFFSET, b, -1
    changes += 1
    waiting, last = 0, True
    for s in range(first[b], end[b]):
        column[changes], index[changes], previous[changes] = _TOTAL, s, total[s]
        changes += 1
        total[s] -= size
        mark[s] = stamp
        queue[waiting] = s
        waiting += 1
    for i in range(problem.near_at[b], problem.near_at[b + 1]):
        c = near[i]
        if offset[c] < 0:
            last = False
            if least[c] < top:
                column[changes], index[changes], previous[changes] = _LEAST, c, least[c]
                changes += 1
                least[c] = top
                for s in range(first[c], end[c]):
                    if mark[s] != stamp:
                        mark[s] = stamp
                        queue[waiting] = s
                        waiting += 1
    return changes, waiting, last


def _has_room(rules: Rules, state: Placement, frames: Frames, depth: int, lowest: int) -> bool:
    """Return whether all the rest fits above an offset, section by section."""
    total, left = state.total, rules.height - lowest
    for s in range(frames.opens[depth], frames.closes[depth]):  # noqa: SIM110 (numba compiles no generators)
        if total[s] > left and total[s] > 0:
            return False
    return True


def _fits(
    problem: Problem, rules: Rules, state: Placement, trail: Trail, scratch: Scratch, lowest: int, changes: int, stamp: int, waiting: int, room: int
) -> tuple[bool, int, int]:
    """Return whether the buffers of the queued sections can lie within the height, none below ``lowest``; the changes; and the count of sections.

    A buffer that cannot be the lowest of a section is raised to the lowest end of another one. Its sections are queued in turn.
    """
    first, end, size, alive, least, offset = problem.first, problem.end, problem.size, problem.alive, state.least, state.offset
    mark, queue, releases, which = scratch.mark, scratch.queue, scratch.keys, scratch.which
    height, sections = rules.height, len(state.total)
    head, limit, looked = 0, waiting * rules.visits, 0
    while head < waiting:
        s = queue[head % sections]
        head += 1
        mark[s] = stamp - 1
        left, latest = height - state.total[s], lowest
        members = 0
        for i in range(problem.alive_at[s], problem.alive_at[s + 1]):
            c = alive[i]
            if offset[c] < 0:
                which[members] = c
                members += 1
                latest = max(latest, least[c])
        if members == 0 or latest <= left:
            continue
        looked += 1
        for i in range(members):
            c = which[i]
            r = max(least[c], lowest)
            j = i
            while j > 0 and releases[j - 1] > r:
                releases[j] = releases[j - 1]
                which[j] = which[j - 1]
                j -= 1
            releases[j] = r
            which[j] = c
        pile, soonest, second, owner = 0, _NEVER, _NEVER, -1
        for i in range(members):
            ends = releases[i] + size[which[i]]
            pile = max(pile, releases[i]) + size[which[i]]
            if ends < soonest:
                soonest, second, owner = ends, soonest, which[i]
            elif ends < second:
                second = ends
        if pile > height:
            return False, changes, looked
        if head > limit or changes > room:
            continue
        for k in range(members):
            i = members - 1 - k
            if releases[i] <= left:
                break
            c = which[i]
            raised = second if c == owner else soonest
            if members > 1 and raised > least[c]:
                if raised + size[c] > height:
                    return False, changes, looked
                trail.column[changes], trail.at[changes], trail.old[changes] = _LEAST, c, least[c]
                changes += 1
                least[c] = raised
                for v in range(first[c], end[c]):
                    if mark[v] != stamp:
                        mark[v] = stamp
                        queue[waiting % sections] = v
                        waiting += 1
    return True, changes, looked


def _divide(problem: Problem, state: Placement, trail: Trail, frames: Frames, lists: Lists, b: int, changes: int, depth: int) -> int:
    """Divide the frame's sections where no remaining buffer crosses, now with one more placed; return the changes."""
    cuts, ranges = state.cuts, lists.ranges
    kid, opens = frames.first_range[depth], frames.opens[depth]
    frames.next_range[depth] = kid
    for s in range(problem.first[b], problem.end[b] - 1):
        trail.column[changes], trail.at[changes], trail.old[changes] = _CUTS, s, cuts[s]
        changes += 1
        cuts[s] -= 1
        if cuts[s] == 0:
            ranges[kid], ranges[kid + 1] = opens, s + 1
            kid += 2
            opens = s + 1
    ranges[kid], ranges[kid + 1] = opens, frames.closes[depth]
    frames.end_range[depth] = kid + 2
    return changes


def _order_anew(problem: Problem, state: Placement, trail: Trail, frames: Frames, lists: Lists, scratch: Scratch, changes: int, depth: int) -> int:
    """Rank the remaining buffers by the fullest of their sections; return the changes."""
    keys, which, rank = scratch.keys, scratch.which, state.rank
    members = 0
    for i in range(frames.first_member[depth], frames.end_member[depth]):
        c = lists.members[i]
        if state.offset[c] >= 0:
            continue
        fullest = 0
        for s in range(problem.first[c], problem.end[c]):
            fullest = max(fullest, state.total[s])
        j = members
        while j > 0 and (keys[j - 1] < fullest or (keys[j - 1] == fullest and which[j - 1] > c)):
            keys[j] = keys[j - 1]
            which[j] = which[j - 1]
            j -= 1
        keys[j] = fullest
        which[j] = c
        members += 1
    for j in range(members):
        c = which[j]
        trail.column[changes], trail.at[changes], trail.old[changes] = _RANK, c, rank[c]
        changes += 1
        rank[c] = j
    return changes


def _descend(problem: Problem, rules: Rules, state: Placement, frames: Frames, lists: Lists, depth: int) -> bool:
    """Make the frame of the choice's next range of sections; return whether a buffer is left there."""
    kid, deeper, members = frames.next_range[depth], depth + 1, lists.members
    frames.next_range[depth] = kid + 2
    opens, closes = lists.ranges[kid], lists.ranges[kid + 1]
    stop = frames.end_member[depth]
    for i in range(frames.first_member[depth], frames.end_member[depth]):
        c = members[i]
        if state.offset[c] < 0 and problem.first[c] >= opens and problem.end[c] <= closes:
            members[stop] = c
            stop += 1
    if stop == frames.end_member[depth]:
        return False
    b = lists.choices[frames.next_choice[depth] - 1]
    alone = frames.end_range[depth] == frames.first_range[depth] + 2
    frames.opens[deeper], frames.closes[deeper] = opens, closes
    frames.floor[deeper] = state.offset[b]
    frames.lowest_rank[deeper] = state.rank[b] if alone or not rules.anew else -1
    frames.first_choice[deeper] = frames.end_choice[depth]
    frames.first_member[deeper], frames.end_member[deeper] = frames.end_member[depth], stop
    frames.first_range[deeper] = frames.end_range[depth]
    return True


PARTS = (_search, _begin, _list_choices, _take_back, _place, _has_room, _fits, _divide, _order_anew, _descend)
"""The functions called by `search_layout`."""
