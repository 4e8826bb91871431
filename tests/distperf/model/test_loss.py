import pytest
import torch
import torch.nn.functional as F

from distperf.model.loss import IGNORE, ROWS, loss_sum


@pytest.mark.parametrize("rows", [1, ROWS - 1, 2 * ROWS + 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_loss_and_gradient_equal_cross_entropy(rows: int, dtype: torch.dtype):
    """Any number of rows gives torch's own sum and gradient, ignored targets included, in their dtype."""
    generator = torch.Generator().manual_seed(rows)
    logits = torch.randn(rows, 33, generator=generator).mul(4).to(dtype)
    targets = torch.randint(0, 33, (rows,), generator=generator)
    targets[rows // 2] = IGNORE
    mine, theirs = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    loss = loss_sum(mine.unsqueeze(0), targets.unsqueeze(0))
    expected = F.cross_entropy(theirs.float(), targets, ignore_index=IGNORE, reduction="sum")
    (loss * 3).backward()
    (expected * 3).backward()
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(mine.grad, theirs.grad)


def test_e07_micro_batches_weigh_by_their_tokens():
    """One target with loss 4 and three with loss 1 give 7 over 4 targets: 1.75, not the mean of means 2.5."""

    def logits_with_loss(loss: float, count: int) -> torch.Tensor:
        other = torch.tensor(loss).exp().sub(1).log()  # log(1 + e^other) = loss
        return torch.stack((torch.zeros(count), other.expand(count)), dim=1).unsqueeze(0)

    short = loss_sum(logits_with_loss(4.0, 3), torch.tensor([[0, IGNORE, IGNORE]]))
    long = loss_sum(logits_with_loss(1.0, 3), torch.tensor([[0, 0, 0]]))
    assert ((short + long) / 4).item() == pytest.approx(1.75)


def test_nothing_to_predict_is_a_loss_of_zero():
    """All targets ignored: exactly zero and a zero gradient, never 0/0."""
    logits = torch.randn(1, 4, 7, requires_grad=True)
    loss = loss_sum(logits, torch.full((1, 4), IGNORE))
    loss.backward()
    assert loss.item() == 0.0
    assert torch.equal(logits.grad, torch.zeros(1, 4, 7))
