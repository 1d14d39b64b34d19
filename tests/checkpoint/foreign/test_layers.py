from luthier.checkpoint.foreign import LayerCycles, Slot, Stacked, guess, is_stacked, slots


def _names(found):
    return {name: (slot.parameter, slot.index, slot.shape) for name, slot in found.items()}


UNROLLED = ("blocks.0.k", "blocks.1.k", "blocks.2.k", "blocks.3.k", "blocks.4.k")


def test_scanned_layers_are_places_on_the_leading_axis():
    found = _names(slots({"blocks.k": Stacked((2, 7), True), "norm.scale": Stacked((7,))}))
    assert found == {
        "blocks.0.k": ("blocks.k", 0, (7,)),
        "blocks.1.k": ("blocks.k", 1, (7,)),
        "norm.scale": ("norm.scale", None, (7,)),
    }


def test_unrolled_layers_are_themselves():
    found = slots({"blocks.3.k": Stacked((7,))})
    assert found == {"blocks.3.k": Slot("blocks.3.k", None, (7,))}


def test_layers_by_turns_come_in_the_order_of_the_model():
    parameters = {
        "blocks.cycle.0.k": Stacked((2, 7), True),
        "blocks.cycle.1.k": Stacked((2, 7), True),
        "blocks.rest.0.k": Stacked((7,)),
    }
    found = _names(slots(parameters))
    assert tuple(sorted(found)) == UNROLLED
    assert found["blocks.2.k"] == ("blocks.cycle.0.k", 1, (7,))
    assert found["blocks.3.k"] == ("blocks.cycle.1.k", 1, (7,))
    assert found["blocks.4.k"] == ("blocks.rest.0.k", None, (7,))


def test_fewer_layers_than_kinds_are_all_rest():
    assert list(slots({"blocks.rest.1.k": Stacked((7,))})) == ["blocks.1.k"]


def test_stacks_of_an_encoder_and_a_decoder_do_not_mix():
    parameters = {
        "encoder.blocks.k": Stacked((2, 7), True),
        "decoder.blocks.cycle.0.k": Stacked((1, 7), True),
        "decoder.blocks.cycle.1.k": Stacked((1, 7), True),
        "decoder.blocks.rest.0.k": Stacked((7,)),
    }
    assert sorted(slots(parameters)) == [
        "decoder.blocks.0.k",
        "decoder.blocks.1.k",
        "decoder.blocks.2.k",
        "encoder.blocks.0.k",
        "encoder.blocks.1.k",
    ]
    assert LayerCycles.find(parameters).of == {"decoder.blocks": (2, 1)}


def test_layers_that_share_their_parameters_are_one():
    found = slots({"blocks.k": Stacked((7,), is_stacked=False)})
    assert found == {"blocks.k": Slot("blocks.k", None, (7,))}


def test_names_alone_show_which_arrays_are_stacked():
    shapes = {"blocks.k": (2, 7), "blocks.0.k": (7,), "blocks.rest.0.k": (7,), "norm.scale": (7,)}
    assert [stacked.is_stacked for stacked in guess(shapes).values()] == [True, False, False, False]


def test_logical_axes_show_which_arrays_are_stacked():
    assert is_stacked(("layers", "embed"))
    assert not is_stacked(("embed",))
    assert not is_stacked(())
    assert not is_stacked(None)
