def js_boundary_loss(pred, target, ignore_index=255):
    w = []
    for p, t in zip(pred.argmax(1), target):
        edge_p = cv2.Laplacian(p.cpu().numpy().astype(np.uint8), cv2.CV_8U)
        edge_t = cv2.Laplacian(t.cpu().numpy().astype(np.uint8), cv2.CV_8U)
        w.append(jensenshannon(edge_p.ravel() + 1e-6, edge_t.ravel() + 1e-6))
    # Convert the list w to a tensor
    w = torch.tensor(w, dtype=pred.dtype, requires_grad=True, device='cuda')
    return w

@LOSSES.register_module()
class JSBoundaryLoss(nn.Module):
    def forward(self, pred, target, **kwargs):
        return js_boundary_loss(pred, target).mean()
