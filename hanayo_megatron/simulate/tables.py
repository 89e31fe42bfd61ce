"""Reports as text for people."""

from __future__ import annotations

from collections.abc import Sequence

from hanayo_megatron.simulate.closed_form import ClosedForm
from hanayo_megatron.simulate.report import Report


def describe(report: Report) -> str:
    """One schedule in full."""
    simulation, bound = report.simulation, report.bound
    placement = report.schedule.placement
    lines = [
        title(report),
        f"  makespan   {_number(simulation.makespan)}; "
        f"no order of the same work is below {_number(bound.makespan)}",
        f"  bubble     {_percent(simulation.bubble_ratio)} of the step, "
        f"{_percent(simulation.own_span_bubble_ratio)} of a rank's own span (the worst rank's)",
        f"  formula    {_formula(report.closed_form)}",
        f"  transfers  {simulation.transfers}",
        "",
    ]
    columns = {
        "compute": map(_number, simulation.compute),
        "wait": map(_number, simulation.wait),
        "transfer": map(_number, simulation.transfer),
        "own-span bubble": map(_percent, simulation.own_span_bubble_ratios),
        "activations (M_a)": map(_number, simulation.peak_activations),
        "weights (M_w)": map(_number, simulation.weight_memory),
        "receive buffers": map(str, simulation.peak_receive_buffers),
        "send buffers": map(str, simulation.peak_send_buffers),
    }
    ranks = map(str, range(placement.num_ranks))
    lines += table(["rank", *columns], list(zip(ranks, *columns.values(), strict=True)))
    return "\n".join(lines)


def compare(reports: Sequence[Report]) -> str:
    """A row for each, the shortest makespan first, and what to make of it."""
    reports = sorted(reports, key=by_makespan)
    headers = ["schedule", "stages", "makespan", "bubble", "own span", "formula"]
    headers += ["activations (M_a)", "weights (M_w)", "receive buffers", "send buffers"]
    headers += ["transfers"]
    has_memory = any((r.costs.weight_memory, r.costs.activation_memory) != (1, 1) for r in reports)
    headers += ["memory"] * has_memory
    rows = []
    for report in reports:
        simulation, form = report.simulation, report.closed_form
        least, most = min(simulation.peak_activations), max(simulation.peak_activations)
        formula = "" if form is None or form.bubble_ratio is None else _percent(form.bubble_ratio)
        rows.append(
            [
                report.schedule.name,
                str(report.schedule.placement.model_stages),
                _number(simulation.makespan),
                _percent(simulation.bubble_ratio),
                _percent(simulation.own_span_bubble_ratio),
                formula,
                f"{_number(least)} to {_number(most)}",
                _number(max(simulation.weight_memory)),
                str(max(simulation.peak_receive_buffers)),
                str(max(simulation.peak_send_buffers)),
                str(simulation.transfers),
                *[_number(report.peak_memory)] * has_memory,
            ]
        )
    return "\n".join([*table(headers, rows), "", _advice(reports)])


def by_makespan(report: Report) -> tuple[float, ...]:
    """Sorting key: the makespan, then what a rank holds at most, then what all hold."""
    simulation = report.simulation
    return (
        simulation.makespan,
        max(simulation.weight_memory),
        max(simulation.peak_activations),
        sum(simulation.peak_activations),
    )


def title(report: Report) -> str:
    """Which schedule it is."""
    placement = report.schedule.placement
    return (
        f"{report.schedule.name}: {placement.num_ranks} ranks, "
        f"{report.schedule.num_microbatches} microbatches, {placement.model_stages} stages"
        + (f", {placement.replicas} replicas" if placement.replicas > 1 else "")
    )


def table(
    headers: Sequence[str], rows: Sequence[Sequence[str]], *, left: int | None = 1
) -> list[str]:
    """Lines of aligned columns, the first ``left`` (None: all) to the left, others to the right."""
    widths = [max(map(len, column)) for column in zip(headers, *rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if left is None or n < left else cell.rjust(width)
            for n, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in (headers, *rows)
    ]


def _advice(reports: Sequence[Report]) -> str:
    """Which one to take; plain 1F1B where nothing is faster."""
    best = reports[0]
    plain = next((report for report in reports if report.schedule.name == "1f1b"), None)
    if plain is None:
        return f"Shortest is {title(best)}."
    if plain.simulation.makespan <= best.simulation.makespan:
        return "Plain 1f1b is the best choice here: no other schedule of this table is faster."
    gain = 1 - best.simulation.makespan / plain.simulation.makespan
    return f"Shortest is {title(best)}; {_percent(gain)} less time than plain 1f1b."


def _formula(form: ClosedForm | None) -> str:
    if form is None:
        return "none known"
    if form.bubble_ratio is None:
        return f"none for these numbers ({form.source})"
    own_span = form.own_span_bubble_ratio
    return (
        f"{_percent(form.bubble_ratio)} of the step"
        + ("" if own_span is None else f", {_percent(own_span)} of a rank's own span")
        + f", {'exact' if form.is_exact else 'an approximation'} ({form.source})"
    )


def _percent(ratio: float) -> str:
    return f"{100 * ratio:.2f}%"


def _number(value: float) -> str:
    return f"{value:.6g}"
