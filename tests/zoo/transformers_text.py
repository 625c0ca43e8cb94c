"""Text models of transformers, from tiny configurations."""

from __future__ import annotations

import torch
from entry import ZOO, Refusal, add, hf_loss

WORDS = 40
SMALL = {
    "vocab_size": WORDS, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
    "intermediate_size": 32, "max_position_embeddings": 32,
}  # fmt: skip
ENDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def words(batch: int = 2, length: int = 7) -> torch.Tensor:
    """Random tokens, none of them special."""
    return torch.randint(4, WORDS, (batch, length))


def masked() -> dict[str, torch.Tensor]:
    """Tokens with padding at the end of the second row, and their mask."""
    ids = words()
    mask = torch.ones_like(ids)
    mask[1, 5:] = 0
    return {"input_ids": ids * mask, "attention_mask": mask}


def encoder(name: str, model: str, config: str, task: str = "class", **options):
    """Registers an encoder, built from ``SMALL`` and options."""
    mixes = options.pop("mixes", "most")
    extra = options.pop("entry", {})

    def build():
        import transformers

        given = {**SMALL, **ENDS, "num_labels": 3, **options}
        if config == "FunnelConfig":
            del given["num_hidden_layers"]
        settings = getattr(transformers, config)(**given)
        net = getattr(transformers, model)(settings)
        batch = masked()
        if task == "class":
            batch["labels"] = torch.tensor([0, 2])
        elif task == "words":
            batch["labels"] = words()
        elif task == "tags":
            batch["labels"] = torch.randint(0, 3, (2, 7))
        else:
            batch |= {
                "start_positions": torch.tensor([1, 2]),
                "end_positions": torch.tensor([3, 4]),
            }
        return net, batch

    add("transformers", name, hf_loss, mixes=mixes, **extra)(build)


def decoder(name: str, model: str, config: str, **options):
    """Registers a decoder that learns to predict the next token; its cache is left on."""
    extra = options.pop("entry", {})
    rename = options.pop("rename", None)

    def build():
        import transformers

        given = rename if rename is not None else SMALL
        settings = getattr(transformers, config)(**{**given, **ENDS, **options})
        net = getattr(transformers, model)(settings)
        ids = words()
        return net, {"input_ids": ids, "labels": ids.clone()}

    add("transformers", name, hf_loss, **extra)(build)


def pair(name: str, model: str, config: str, **options):
    """Registers an encoder–decoder."""
    extra = options.pop("entry", {})

    def build():
        import transformers

        settings = getattr(transformers, config)(
            **{"vocab_size": WORDS, "decoder_start_token_id": 1, **ENDS, **options}
        )
        net = getattr(transformers, model)(settings)
        return net, masked() | {"labels": words(2, 5)}

    add("transformers", name, hf_loss, **extra)(build)


encoder("bert-classification", "BertForSequenceClassification", "BertConfig")
encoder("bert-masked-words", "BertForMaskedLM", "BertConfig", "words")
encoder("bert-eager", "BertForTokenClassification", "BertConfig", "tags",
        attn_implementation="eager")  # fmt: skip
encoder("bert-chunked", "BertForSequenceClassification", "BertConfig", chunk_size_feed_forward=7)
encoder("bert-dropout", "BertForSequenceClassification", "BertConfig", entry={"random": True})
encoder("roberta", "RobertaForSequenceClassification", "RobertaConfig")
encoder("distilbert", "DistilBertForQuestionAnswering", "DistilBertConfig", "span",
        num_labels=2, dim=16, n_layers=2, n_heads=2, hidden_dim=32)  # fmt: skip
encoder("albert", "AlbertForMaskedLM", "AlbertConfig", "words", embedding_size=8)
encoder("deberta-v2", "DebertaV2ForSequenceClassification", "DebertaV2Config",
        relative_attention=True, pos_att_type=["p2c", "c2p"], position_biased_input=False,
        pooler_hidden_size=16)  # fmt: skip
encoder("electra", "ElectraForTokenClassification", "ElectraConfig", "tags", embedding_size=8)
encoder("mobilebert", "MobileBertForSequenceClassification", "MobileBertConfig",
        embedding_size=8, true_hidden_size=8, intra_bottleneck_size=8,
        num_feedforward_networks=2)  # fmt: skip
encoder("convbert", "ConvBertForSequenceClassification", "ConvBertConfig", embedding_size=16,
        conv_kernel_size=3)  # fmt: skip
encoder("fnet", "FNetForMaskedLM", "FNetConfig", "words")
encoder("funnel", "FunnelForTokenClassification", "FunnelConfig", "tags", block_sizes=[1, 1],
        num_decoder_layers=1, d_model=16, n_head=2, d_head=8, d_inner=32)  # fmt: skip
encoder("modernbert", "ModernBertForSequenceClassification", "ModernBertConfig",
        cls_token_id=3, sep_token_id=3, global_attn_every_n_layers=2)  # fmt: skip
encoder("longformer", "LongformerForSequenceClassification", "LongformerConfig",
        attention_window=4)  # fmt: skip

decoder(
    "gpt2",
    "GPT2LMHeadModel",
    "GPT2Config",
    rename={"vocab_size": WORDS, "n_positions": 32, "n_embd": 16, "n_layer": 2, "n_head": 2},
)
decoder("gpt-neo", "GPTNeoForCausalLM", "GPTNeoConfig", num_layers=2, num_heads=2,
        attention_types=[[["global", "local"], 1]], window_size=4)  # fmt: skip
decoder("gpt-neox", "GPTNeoXForCausalLM", "GPTNeoXConfig")
decoder("gptj", "GPTJForCausalLM", "GPTJConfig",
        rename={"vocab_size": WORDS, "n_positions": 32, "n_embd": 16, "n_layer": 2, "n_head": 2,
                "rotary_dim": 4})  # fmt: skip
decoder("llama", "LlamaForCausalLM", "LlamaConfig", num_key_value_heads=1)
decoder("llama-tied", "LlamaForCausalLM", "LlamaConfig", tie_word_embeddings=True)
decoder("mistral", "MistralForCausalLM", "MistralConfig", num_key_value_heads=1, sliding_window=4)
decoder("qwen2", "Qwen2ForCausalLM", "Qwen2Config", num_key_value_heads=1)
decoder("qwen3", "Qwen3ForCausalLM", "Qwen3Config", num_key_value_heads=1, head_dim=8)
decoder("gemma2", "Gemma2ForCausalLM", "Gemma2Config", num_key_value_heads=1, head_dim=8)
decoder("opt", "OPTForCausalLM", "OPTConfig", ffn_dim=32, word_embed_proj_dim=16)
decoder(
    "bloom",
    "BloomForCausalLM",
    "BloomConfig",
    rename={"vocab_size": WORDS, "hidden_size": 16, "n_layer": 2, "n_head": 2},
)
decoder("falcon", "FalconForCausalLM", "FalconConfig", multi_query=True)
decoder("phi", "PhiForCausalLM", "PhiConfig")
decoder("mamba", "MambaForCausalLM", "MambaConfig", state_size=4, time_step_rank=4)
decoder("mamba2", "Mamba2ForCausalLM", "Mamba2Config", state_size=4, num_heads=4, head_dim=8,
        n_groups=1, chunk_size=4)  # fmt: skip
decoder("mixtral", "MixtralForCausalLM", "MixtralConfig", num_key_value_heads=1,
        num_local_experts=3, num_experts_per_tok=2, output_router_logits=True,
        entry={"mixes": "unknown", "smooth": False})  # fmt: skip
decoder("qwen2-moe", "Qwen2MoeForCausalLM", "Qwen2MoeConfig", num_key_value_heads=1,
        num_experts=3, num_experts_per_tok=2, moe_intermediate_size=16,
        shared_expert_intermediate_size=16,
        entry={"mixes": "unknown", "smooth": False})  # fmt: skip

T5 = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2}
BART = {
    "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32,
    "max_position_embeddings": 32,
}  # fmt: skip
pair("t5", "T5ForConditionalGeneration", "T5Config", **T5)
pair("t5-gated", "T5ForConditionalGeneration", "T5Config", **T5, feed_forward_proj="gated-gelu",
     tie_word_embeddings=False)  # fmt: skip
pair("bart", "BartForConditionalGeneration", "BartConfig", **BART)
pair("marian", "MarianMTModel", "MarianConfig", **BART, decoder_vocab_size=WORDS)
pair("pegasus", "PegasusForConditionalGeneration", "PegasusConfig", **BART)
pair("switch-transformer", "SwitchTransformersForConditionalGeneration", "SwitchTransformersConfig",
     **T5, num_decoder_layers=1, num_experts=2, num_sparse_encoder_layers=1,
     num_sparse_decoder_layers=0, router_jitter_noise=0.0, expert_capacity=16,
     entry={"mixes": "unknown", "smooth": False})  # fmt: skip

CHECKPOINT = Refusal("checkpoint")


@add("transformers", "bert-checkpointing", hf_loss, refuses={"messages": CHECKPOINT})
def bert_checkpointing():
    model, batch = ZOO["bert-classification"].build()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model, batch


@add("transformers", "llama-checkpointing-reentrant", hf_loss, refuses={"messages": CHECKPOINT})
def llama_checkpointing():
    model, batch = ZOO["llama"].build()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": True})
    model.enable_input_require_grads()
    return model, batch
