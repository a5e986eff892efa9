def batches(lengths, tokens, size):
    order = np.argsort(lengths)
    for start in range(0, len(order), size):
        idx = order[start:start + size]
        width = int(lengths[idx].max())
        yield idx, tokens[idx, :width]

def main():
    for n, (idx, ids) in enumerate(batches(lengths, tokens, args.batch_size)):
        ids = torch.as_tensor(ids, device="cuda")
        mask = (ids != 0).long()
        with torch.no_grad():
            out = model(input_ids=ids, attention_mask=mask)
        store[idx] = pool(out.last_hidden_state, mask).cpu().numpy()
