"""From samples to a judged table: medians, advantages, goals reached or not, and what was not measured."""

from __future__ import annotations

import statistics

from rows import Goal, Row


def quantity(value: float, unit: str) -> str:
    if unit == "s":
        for factor, name in ((1, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns")):
            if abs(value) >= factor:
                return f"{value / factor:.3g} {name}"
        return f"{value / 1e-9:.2g} ns"
    if unit in ("/s", "B/s", "B"):
        tail = {"/s": "/s", "B/s": "B/s", "B": "B"}[unit]
        for factor, name in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
            if abs(value) >= factor:
                return f"{value / factor:.3g} {name}{tail}"
        return f"{value:.3g} {tail}"
    return f"{value:.3g}" + {"MB": " MB", "%": " %"}.get(unit, "")


def advantage(row: Row, ours: float, theirs: float) -> float | None:
    """How many times as good `ours` is; None where a division has no meaning."""
    better, worse = (ours, theirs) if row.higher_is_better else (theirs, ours)
    return better / worse if worse > 0 else None


def judge(row: Row, goal: Goal, medians: dict[str, dict[str, float]]) -> dict:
    """`medians` are those of all rows by key and system. Reached is None where something was not measured."""
    ours = medians.get(row.key, {}).get(row.subject)
    judged = {"goal": goal.text, "against": goal.against, "wanted": goal.advantage, "advantage": None, "reached": None}
    if ours is None:
        return judged
    if goal.bound is not None:
        judged["reached"] = ours >= goal.bound if row.higher_is_better else ours <= goal.bound
        return judged
    theirs = medians.get(goal.row or row.key, {}).get(goal.against)
    if theirs is None:
        return judged
    judged["advantage"] = advantage(row, ours, theirs)
    if judged["advantage"] is None:
        judged["reached"] = True if not row.higher_is_better else None  # Ours is zero, which cannot be undercut.
    else:
        judged["reached"] = judged["advantage"] >= goal.advantage
    return judged


def summarise(rows: list[Row], samples: dict[str, dict[str, list[float]]], failures: dict[str, dict[str, str]]) -> list:
    medians = {
        key: {name: statistics.median(values) for name, values in per_system.items() if values}
        for key, per_system in samples.items()
    }
    result = []
    for row in rows:
        values = {
            name: {"median": statistics.median(found), "min": min(found), "max": max(found), "samples": found}
            for name, found in samples.get(row.key, {}).items()
            if found
        }
        result.append(
            {
                "key": row.key,
                "title": row.title,
                "unit": row.unit,
                "higher_is_better": row.higher_is_better,
                "subject": row.subject,
                "bare": row.bare,
                "note": row.note,
                "parameters": {name: row.parameters_of(name) for name in row.systems},
                "values": values,
                "advantage_over": {
                    name: advantage(row, values[row.subject]["median"], values[name]["median"])
                    for name in values
                    if row.subject in values and name != row.subject
                },
                "goals": [judge(row, goal, medians) for goal in row.goals],
                "failures": failures.get(row.key, {}),
            }
        )
    return result


def _ratio(goal: dict) -> str:
    ratio = goal["advantage"]
    if ratio is None:
        return ""
    return f"{100 * ratio:.2g} %" if ratio < 0.995 else f"{ratio:.3g}×"


def table(summary: list, systems: list[str]) -> str:
    # The C++ APIs share the columns of their systems: a row is about one language.
    columns = list(dict.fromkeys(name.replace("_cpp", "") for name in systems))
    lines = [["", *columns, "goal", "ratio", "reached"]]
    for row in summary:
        cells = [row["title"]]
        for name in columns:
            if row["subject"] == "weft_cpp" and name in ("weft", "ray"):
                name += "_cpp"
            value = row["values"].get(name)
            if value:
                cells.append(quantity(value["median"], row["unit"]))
            else:
                cells.append("failed" if name in row["failures"] else "–")
        goals = [
            [goal["goal"], _ratio(goal), {True: "yes", False: "NO", None: "?"}[goal["reached"]]]
            for goal in row["goals"]
        ] or [["", "", ""]]
        lines.append(cells + goals[0])
        lines.extend([""] * len(cells) + goal for goal in goals[1:])
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    text = [
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width) for i, (cell, width) in enumerate(zip(line, widths))
        ).rstrip()
        for line in lines
    ]
    text.insert(1, "─" * max(map(len, text)))
    return "\n".join(text)


def remarks(result: dict) -> str:
    """Everything a reader must know before believing the table."""
    lines = []
    bare = sorted(
        {f"{row['title']}: {row['bare']}" for row in result["rows"] if row["bare"] and "bare" in row["values"]}
    )
    if bare:
        lines += ["The bare column:", *(f"  {line}" for line in bare)]
    notes = sorted({f"{row['title']}: {row['note']}" for row in result["rows"] if row["note"]})
    if notes:
        lines += ["Notes:", *(f"  {line}" for line in notes)]
    failed = [f"{row['title']}, {name}: {reason}" for row in result["rows"] for name, reason in row["failures"].items()]
    if failed:
        lines += ["Not measured because it failed or is missing:", *(f"  {line}" for line in failed)]
    unsteady = [
        f"{row['title']}, {name}: {quantity(value['min'], row['unit'])} to {quantity(value['max'], row['unit'])}"
        for row in result["rows"]
        for name, value in row["values"].items()
        if value["min"] > 0 and value["max"] > 2 * value["min"]
    ]
    if unsteady:
        lines += [
            "Unsteady (repetitions differ more than twofold; the table has the median):",
            *(f"  {line}" for line in unsteady),
        ]
    lines += ["Not measured by this suite or in this run:", *(f"  {line}" for line in result["not_measured"])]
    goals = [goal["reached"] for row in result["rows"] for goal in row["goals"]]
    lines.append(f"Goals: {goals.count(True)} reached, {goals.count(False)} not reached, {goals.count(None)} unknown.")
    lines += result["warnings"]
    return "\n".join(lines)
