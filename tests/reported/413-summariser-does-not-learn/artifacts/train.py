optimizer = torch.optim.AdamW(optimizer_grouped_parameters, lr=args.learning_rate)
lr_scheduler = get_scheduler("linear", optimizer, num_warmup_steps=0, num_training_steps=max_steps)

model, optimizer, train_dataloader, eval_dataloader, lr_scheduler = accelerator.prepare(
    model, optimizer, train_dataloader, eval_dataloader, lr_scheduler
)
for epoch in range(args.num_train_epochs):
    model.train()
    for step, batch in enumerate(train_dataloader):
        outputs = model(**batch)
        accelerator.backward(outputs.loss)
        optimizer.step()
        lr_scheduler.step()
        optimizer.zero_grad()
