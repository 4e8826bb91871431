import torch

from distperf.model.span import WHOLE, Span

CPU = torch.device("cpu")


def test_the_whole_span_is_all_positions_in_order() -> None:
    """Without division a row's position is its index."""
    assert WHOLE.positions(6, CPU).tolist() == [0, 1, 2, 3, 4, 5]


def test_pieces_are_places_in_the_whole_sequence() -> None:
    """Rows of pieces 1 and 2 of 4 are the sequence's middle half, whatever the order."""
    assert Span((1, 2), 4).positions(4, CPU).tolist() == [2, 3, 4, 5]
    assert Span((2, 1), 4).positions(4, CPU).tolist() == [4, 5, 2, 3]


def test_parts_of_a_span_divide_its_rows_in_order() -> None:
    """Dividing rows again gives, part after part, the positions of the undivided rows."""
    span = Span((1, 6), 8)
    for size in (1, 2, 3, 4):
        parts = [span.part(index, size).positions(24 // size, CPU) for index in range(size)]
        assert torch.equal(torch.cat(parts), span.positions(24, CPU))
