tokenizer = AutoTokenizer.from_pretrained("openchat/openchat-3.5-1210")
tokenizer.pad_token = tokenizer.eos_token          # <|end_of_turn|>
response_template = "<|end_of_turn|>GPT4 Correct Assistant:"
collator = DataCollatorForCompletionOnlyLM(response_template, tokenizer=tokenizer)
trainer = SFTTrainer(
    model=model, args=args, train_dataset=train, eval_dataset=val,
    dataset_text_field="text", max_seq_length=2048, packing=False,
    data_collator=collator, peft_config=peft_config,
)
trainer.train()
