"""Networks from torchvision, transformers and PyTorch Geometric at random initialisation, trained by StreamingADMM.

    python benchmarks/thirty_networks.py            # all whose package is installed
    python benchmarks/thirty_networks.py --only GPT2 resnet18

Small configurations, one batch of random data, 20 steps at the optimizer's defaults. A network passes where nothing is
raised, everything is finite and the loss of the last three steps is below that of the first three. "maps" counts the
weights whose uses as a linear map are seen; "others" names those with two axes or more that take Adam's steps: tables,
last maps, one channel each, positions, weights behind a parametrization.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dladmm import StreamingADMM

Case = tuple[nn.Module, Callable[[nn.Module], Tensor]]
"""A network, and its loss on one batch."""

# ------------------------------------------------------------------------------------------------ torchvision


def image_loss(outputs: Any, y: Tensor) -> Tensor:
    """Of classes, or of classes at every pixel; heads beside the main one count .4."""
    if isinstance(outputs, Tensor):
        return F.cross_entropy(outputs, y)
    heads = list(outputs.values() if isinstance(outputs, dict) else outputs)
    return sum(
        (F.cross_entropy(head, y) * (0.4 if i else 1.0) for i, head in enumerate(heads)), torch.zeros(())
    )


def vision(name: str, size: int = 64, **settings: Any) -> Callable[[], Case]:
    def make() -> Case:
        from torchvision import models

        module = models.get_model(name, weights=None, num_classes=10, **settings)
        x, y = torch.randn(4, 3, size, size), torch.randint(0, 10, (4,))
        return module, lambda m: image_loss(m(x), y)

    return make


def video() -> Case:
    from torchvision import models

    x, y = torch.randn(4, 3, 4, 32, 32), torch.randint(0, 10, (4,))
    return models.get_model("r3d_18", num_classes=10), lambda m: F.cross_entropy(m(x), y)


def pixels(name: str, **settings: Any) -> Callable[[], Case]:
    def make() -> Case:
        from torchvision import models

        module = models.get_model(name, weights=None, weights_backbone=None, num_classes=5, **settings)
        x, y = torch.randn(4, 3, 64, 64), torch.randint(0, 5, (4, 64, 64))
        return module, lambda m: image_loss(m(x), y)

    return make


def vision_transformer() -> Case:
    from torchvision.models.vision_transformer import VisionTransformer

    module = VisionTransformer(32, 8, 3, 4, 64, 128, num_classes=10)
    x, y = torch.randn(8, 3, 32, 32), torch.randint(0, 10, (8,))
    return module, lambda m: F.cross_entropy(m(x), y)


VISION: dict[str, Callable[[], Case]] = {
    name: vision(name)
    for name in (
        *("resnet18", "resnext50_32x4d", "vgg11_bn", "mobilenet_v2", "mobilenet_v3_small", "efficientnet_b0"),
        *("convnext_tiny", "swin_t", "squeezenet1_1", "shufflenet_v2_x0_5", "regnet_y_400mf", "densenet121"),
    )
}
VISION |= {
    "googlenet": vision("googlenet", aux_logits=True, init_weights=False),
    "inception_v3": vision("inception_v3", 299, aux_logits=True, init_weights=False),
    "vit": vision_transformer,
    "fcn_resnet50": pixels("fcn_resnet50", aux_loss=True),
    "deeplabv3_mobilenet_v3_large": pixels("deeplabv3_mobilenet_v3_large"),
    "r3d_18": video,
}

# ------------------------------------------------------------------------------------------------ transformers

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
IDS = {"vocab_size": 99, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def language(
    name: str, config: dict[str, Any], labels: str = "tokens", **inputs: Tensor
) -> Callable[[], Case]:
    """The model ``name`` with this configuration, trained on its own loss."""

    def make() -> Case:
        import transformers

        model_class = getattr(transformers, name)
        module = model_class(model_class.config_class(**config))
        ids = torch.randint(3, 99, (4, 16))
        given: dict[str, Any] = {n: t.to(ids.device) for n, t in inputs.items()} or {"input_ids": ids}
        if labels == "tokens":
            given["labels"] = ids
        elif labels == "classes":
            given["labels"] = torch.randint(0, 2, (4,))
        elif labels == "contrast":
            given |= {"input_ids": ids, "return_loss": torch.tensor(True)}
        return module, lambda m: m(**given).loss

    return make


def clip() -> Case:
    from transformers import CLIPConfig, CLIPModel

    config = CLIPConfig(
        text_config={**SIZES, **IDS, "max_position_embeddings": 16},
        vision_config={**SIZES, "image_size": 32, "patch_size": 8},
        projection_dim=16,
    )
    ids, images = torch.randint(3, 99, (4, 16)), torch.randn(4, 3, 32, 32)
    return CLIPModel(config), lambda m: m(input_ids=ids, pixel_values=images, return_loss=True).loss


def whisper() -> Case:
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    config = WhisperConfig(
        d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=2, decoder_attention_heads=2,
        encoder_ffn_dim=64, decoder_ffn_dim=64, num_mel_bins=16, max_source_positions=20, max_target_positions=16,
        **IDS, decoder_start_token_id=1,
    )  # fmt: skip
    features, ids = torch.randn(4, 16, 40), torch.randint(3, 99, (4, 8))
    return WhisperForConditionalGeneration(config), lambda m: m(input_features=features, labels=ids).loss


def speech() -> Case:
    from transformers import Wav2Vec2Config, Wav2Vec2ForSequenceClassification

    config = Wav2Vec2Config(
        **SIZES, conv_dim=(16, 16), conv_kernel=(10, 3), conv_stride=(5, 2), num_feat_extract_layers=2,
        num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=2, mask_time_prob=0.0, layerdrop=0.0,
    )  # fmt: skip
    sound, y = torch.randn(4, 400), torch.randint(0, 2, (4,))
    return Wav2Vec2ForSequenceClassification(config), lambda m: m(sound, labels=y).loss


GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 16, **IDS}
T5 = {
    "d_model": 32,
    "d_kv": 16,
    "d_ff": 64,
    "num_layers": 2,
    "num_heads": 2,
    **IDS,
    "decoder_start_token_id": 0,
}
NEO = {"hidden_size": 32, "num_layers": 2, "num_heads": 2, "attention_types": [[["global", "local"], 1]]}
BART = {
    "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, **IDS, "decoder_start_token_id": 1,
}  # fmt: skip
DISTIL = {"dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 64, **IDS}
MAMBA = {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 8, **IDS}
EXPERTS = {"num_local_experts": 4, "num_key_value_heads": 1}
IMAGES = {"image_size": 32, "patch_size": 8, "num_labels": 2}
LANGUAGE: dict[str, Callable[[], Case]] = {
    "BERT": language("BertForMaskedLM", {**SIZES, **IDS}),
    "RoBERTa": language("RobertaForSequenceClassification", {**SIZES, **IDS}, "classes"),
    "DistilBERT": language("DistilBertForSequenceClassification", DISTIL, "classes"),
    "ALBERT": language("AlbertForMaskedLM", {**SIZES, **IDS, "embedding_size": 16}),
    "GPT2": language("GPT2LMHeadModel", GPT2),
    "GPT-Neo": language("GPTNeoForCausalLM", {**NEO, **IDS, "max_position_embeddings": 32}),
    "Llama": language("LlamaForCausalLM", {**SIZES, **IDS, "num_key_value_heads": 1}),
    "Mixtral": language("MixtralForCausalLM", {**SIZES, **IDS, **EXPERTS}),
    "T5": language("T5ForConditionalGeneration", T5),
    "BART": language("BartForConditionalGeneration", BART),
    "Mamba": language("MambaForCausalLM", MAMBA),
    "ViT": language(
        "ViTForImageClassification", {**SIZES, **IMAGES}, "classes", pixel_values=torch.randn(4, 3, 32, 32)
    ),
    "CLIP": clip,
    "Whisper": whisper,
    "Wav2Vec2": speech,
}

# ------------------------------------------------------------------------------------------------ graphs


def graph(name: str, **settings: Any) -> Callable[[], Case]:
    """A model of PyTorch Geometric on a random graph."""

    def make() -> Case:
        from torch_geometric.nn import models

        x, y = torch.randn(60, 16), torch.randint(0, 4, (60,))
        edges = torch.randint(0, 60, (2, 240))
        module = getattr(models, name)(16, 32, num_layers=3, out_channels=4, **settings)
        return module, lambda m: F.cross_entropy(m(x, edges), y)

    return make


def relations() -> Case:
    from torch_geometric.nn import RGCNConv

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = RGCNConv(16, 32, 3), RGCNConv(32, 4, 3, num_bases=2)

        def forward(self, x: Tensor, edges: Tensor, kind: Tensor) -> Tensor:
            return self.second(self.first(x, edges, kind).relu(), edges, kind)

    x, y = torch.randn(60, 16), torch.randint(0, 4, (60,))
    edges, kind = torch.randint(0, 60, (2, 240)), torch.randint(0, 3, (240,))
    return Net(), lambda m: F.cross_entropy(m(x, edges, kind), y)


def molecules() -> Case:
    """GPS layers (attention beside messages) and a mean over each graph."""
    from torch_geometric.nn import GINEConv, GPSConv, global_mean_pool

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.atoms, self.bonds = nn.Embedding(10, 32), nn.Embedding(4, 32)
            self.layers = nn.ModuleList(GPSConv(32, GINEConv(nn.Linear(32, 32)), heads=2) for _ in range(2))
            self.head = nn.Linear(32, 2)

        def forward(self, atoms: Tensor, edges: Tensor, bonds: Tensor, batch: Tensor) -> Tensor:
            h, e = self.atoms(atoms), self.bonds(bonds)
            for layer in self.layers:
                h = layer(h, edges, batch, edge_attr=e)
            return self.head(global_mean_pool(h, batch))

    atoms, batch = torch.randint(0, 10, (60,)), torch.arange(60) // 10
    edges, bonds, y = torch.randint(0, 60, (2, 240)), torch.randint(0, 4, (240,)), torch.randint(0, 2, (6,))
    return Net(), lambda m: F.cross_entropy(m(atoms, edges, bonds, batch), y)


GRAPHS: dict[str, Callable[[], Case]] = {
    "GCN": graph("GCN"),
    "GraphSAGE": graph("GraphSAGE"),
    "GAT": graph("GAT", heads=4),
    "GATv2": graph("GAT", heads=4, v2=True),
    "GIN": graph("GIN"),
    "EdgeCNN": graph("EdgeCNN"),
    "RGCN": relations,
    "GPS": molecules,
}

NETWORKS = {"torchvision": VISION, "transformers": LANGUAGE, "torch_geometric": GRAPHS}


def run(make: Callable[[], Case], device: str, steps: int) -> dict[str, Any]:
    """Losses of the steps, and which weights are maps."""
    torch.manual_seed(0)
    with torch.device(device):
        module, loss_of = make()
    module = module.to(device).train()
    optimizer = StreamingADMM(module, total_steps=steps)
    losses, began = [], time.perf_counter()
    for _ in range(steps):
        optimizer.zero_grad()
        loss = loss_of(module)
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    seconds = time.perf_counter() - began
    states = {n: optimizer.state[p].get("layout") for n, p in module.named_parameters()}
    wide = [n for n, p in module.named_parameters() if p.ndim > 1 and p.grad is not None]
    held = {
        t.untyped_storage().data_ptr(): t.untyped_storage().nbytes()
        for state in optimizer.state.values()
        for t in state.values()
        if isinstance(t, Tensor)
    }
    size = sum(p.numel() * p.element_size() for p in module.parameters())
    finite = all(map(math.isfinite, losses)) and all(bool(p.isfinite().all()) for p in module.parameters())
    return {
        "parameters": size // 4,
        "maps": sum(states[n] is not None for n in wide),
        "weights": len(wide),
        "others": [n for n in wide if states[n] is None],
        "first": sum(losses[:3]) / 3,
        "last": sum(losses[-3:]) / 3,
        "state": sum(held.values()) / size,
        "seconds": seconds,
        "passed": finite and sum(losses[-3:]) < sum(losses[:3]),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="NETWORK")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--json", help="write the rows to this file")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    rows, refused = [], 0
    print("| network | maps of weights | loss, first and last three steps | state | s | others |")
    print("| --- | --- | --- | --- | --- | --- |")
    for package, networks in NETWORKS.items():
        chosen = {name: make for name, make in networks.items() if not options.only or name in options.only}
        if chosen and importlib.util.find_spec(package) is None:
            print(f"| {package} is not installed: {', '.join(chosen)} left out | | | | | |")
            continue
        for name, make in chosen.items():
            try:
                row = {"package": package, "network": name, **run(make, options.device, options.steps)}
            except Exception as error:
                traceback.print_exc()
                row = {"package": package, "network": name, "passed": False, "error": repr(error)}
            rows.append(row)
            refused += not row["passed"]
            if "error" in row:
                print(f"| {name} | FAILED: {row['error'][:120]} | | | | |", flush=True)
                continue
            others = ", ".join(row["others"][:4]) + (
                f" and {len(row['others']) - 4} more" if row["others"][4:] else ""
            )
            print(
                f"| {name} ({row['parameters'] / 1e6:.2f} M) | {row['maps']} of {row['weights']} | {row['first']:.3f}, "
                f"{row['last']:.3f}{'' if row['passed'] else ' FAILED'} | {row['state']:.2f} | {row['seconds']:.1f} "
                f"| {others} |",
                flush=True,
            )
    print(f"\n{len(rows) - refused} of {len(rows)} networks passed")
    if options.json:
        with open(options.json, "w") as file:
            json.dump(rows, file)
    return int(refused > 0)


if __name__ == "__main__":
    sys.exit(main())
