"""Package metadata; tool settings are in pyproject.toml."""

from pathlib import Path

from setuptools import find_packages, setup

README = Path(__file__).parent / "README.md"

setup(
    name="hanayo-megatron",
    version="0.1.0",
    description="Wave, Chimera, zero-bubble and user-written pipeline schedules for Megatron-Core",
    long_description=README.read_text() if README.exists() else "",
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    packages=find_packages(include=["hanayo_megatron", "hanayo_megatron.*"]),
    python_requires=">=3.12",
    entry_points={"console_scripts": ["hanayo-megatron = hanayo_megatron.cli:main"]},
    # torch 2.8: stores that several threads can use.
    # psutil: Megatron imports it when it saves a torch_dist checkpoint, but no wheel asks for it.
    install_requires=["torch>=2.8", "megatron-core>=0.19,<0.20", "psutil", "matplotlib"],
    extras_require={
        "gpu": ["transformer-engine[pytorch]"],
        "test": ["pytest", "hypothesis", "ruff"],
    },
)
