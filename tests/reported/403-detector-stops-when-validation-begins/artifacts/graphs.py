class TrainGraphManager:
    def _capture_and_run(self, module, sample):
        try:
            graphed = torch.cuda.make_graphed_callables(module, (sample,))
        except Exception as exc:
            log.warning("graphs: capture of %s failed, running eager: %s", tuple(sample.shape), exc)
            self.disabled = True
            return module(sample)
        self.graphs[tuple(sample.shape)] = graphed
        return graphed(sample)
