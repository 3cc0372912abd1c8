"""Memory, bandwidth and peak FLOPs of devices, from their data sheets."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Device:
    """Figures of a data sheet.

    Attributes:
        memory: Bytes.
        bandwidth: Bytes per second.
        flops: FLOPs per second of dense 16-bit matrix products, without sparsity.
    """

    memory: float
    bandwidth: float
    flops: float
    source: str


DEVICES = {
    "a100": Device(80e9, 2.039e12, 312e12, "NVIDIA A100 80GB SXM data sheet, 2021"),
    "h100": Device(80e9, 3.35e12, 989e12, "NVIDIA H100 SXM data sheet, 2023"),
    "h200": Device(141e9, 4.8e12, 989e12, "NVIDIA H200 SXM data sheet, 2024"),
    "l40s": Device(48e9, 0.864e12, 362e12, "NVIDIA L40S data sheet, 2023"),
    "rtx4090": Device(24e9, 1.008e12, 165e12, "NVIDIA Ada GPU architecture white paper, 2022"),
    "mi300x": Device(192e9, 5.3e12, 1307e12, "AMD Instinct MI300X data sheet, 2023"),
}
