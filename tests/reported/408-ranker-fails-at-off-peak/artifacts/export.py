b = torch.randn((16, 5, 30))
b_lengths = torch.randint(low=1, high=b.shape[1], size=(len(b),))
b_lengths, _ = torch.sort(b_lengths, descending=True)

def feed_rnn(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    x = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
    x, hidden = lstm(x)
    x, lengths = nn.utils.rnn.pad_packed_sequence(x, batch_first=True)
    return x

func = torch.jit.trace(feed_rnn, (b, b_lengths))
func.save("ranker.pt")
