"""Costs files: what they may say, and errors that name the field."""

import json

import pytest

from hanayo_megatron.schedule import Costs, Kind
from hanayo_megatron.schedule.placement import linear
from hanayo_megatron.simulate.costs_file import check_costs_fit, load_costs


def write(tmp_path, content, encoding="utf-8"):
    path = tmp_path / "costs.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding=encoding)
    return path


def test_every_field(tmp_path):
    content = {
        "forward": 2,
        "backward": 4.5,
        "input": 2.5,
        "weight": 2,
        "transfer": 0.1,
        "stage_times": {"F": {"0": 3, "12": 1.5}, "W": {"3": 0}},
        "link_times": {"0->1": 0.2, "1->0": 0.4},
        "weight_memory": 10,
        "activation_memory": 3.5,
    }
    assert load_costs(write(tmp_path, content)) == Costs(
        forward=2,
        backward=4.5,
        input=2.5,
        weight=2,
        transfer=0.1,
        stage_times={(Kind.F, 0): 3, (Kind.F, 12): 1.5, (Kind.W, 3): 0},
        link_times={(0, 1): 0.2, (1, 0): 0.4},
        weight_memory=10,
        activation_memory=3.5,
    )


def test_all_fields_are_optional_and_a_byte_order_mark_is_accepted(tmp_path):
    assert load_costs(write(tmp_path, "{}", encoding="utf-8-sig")) == Costs()
    assert load_costs(write(tmp_path, {"backward": None})) == Costs()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "costs.json is not JSON"),
        ([1], "expected an object with fields of costs, got [1]"),
        ({"foward": 1}, "unknown field 'foward'; known are forward, backward, input, weight"),
        ({"forward": "1"}, 'forward must be a number, got "1"'),
        ({"forward": None}, "forward must be a number, got null"),
        ({"transfer": True}, "transfer must be a number, got true"),
        ({"weight": -1}, "weight must be finite and not negative, got -1"),
        ('{"input": NaN}', "input must be finite and not negative, got nan"),
        ({"weight_memory": -2}, "weight_memory must be finite and not negative"),
        ({"stage_times": [1]}, "stage_times must be an object, got [1]"),
        ({"stage_times": {"X": {}}}, "stage_times has kind 'X'; expected one of F, B, I, W"),
        ({"stage_times": {"F": [1]}}, "stage_times.F must be an object, got [1]"),
        ({"stage_times": {"F": {"-1": 1}}}, "stage_times.F has key '-1'; expected a stage id"),
        ({"stage_times": {"B": {"2": "x"}}}, 'stage_times.B.2 must be a number, got "x"'),
        ({"link_times": {"0-1": 1}}, "link_times has key '0-1'; expected two ranks"),
        ({"link_times": {"0->1": -1}}, "link_times.0->1 must be finite and not negative"),
    ],
)
def test_errors_name_file_and_field(tmp_path, content, message):
    with pytest.raises(ValueError, match="costs file") as error:
        load_costs(write(tmp_path, content))
    assert message in str(error.value)


def test_figures_for_stages_and_ranks_that_do_not_exist():
    check_costs_fit(Costs(stage_times={(Kind.F, 3): 1}, link_times={(3, 0): 1}), linear(4))
    with pytest.raises(ValueError, match=r"stage_times\.B\.4: there is no stage 4"):
        check_costs_fit(Costs(stage_times={(Kind.B, 4): 1}), linear(4))
    with pytest.raises(ValueError, match=r"link_times\.0->4: there is no such link"):
        check_costs_fit(Costs(link_times={(0, 4): 1}), linear(4))
