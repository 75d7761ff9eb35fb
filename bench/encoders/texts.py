"""Texts to encode: English and code that come with Python, Chinese and mixed ones made here. Any number, all different.

English: Python's own reference pages (`pydoc_data.topics`, PSF licence) and the descriptions of installed packages.
Code: the standard library's sources. Chinese: sentences of common words, in the proportions of written Chinese by
rank. Mixed: lines of all of these, of logs, JSON and emoji.
"""

import functools
import importlib.metadata
import json
import random
import re
import sysconfig
from collections.abc import Callable
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

KINDS = ("english", "code", "chinese", "mixed")
_CHINESE_BYTES = 4_000_000

_WORDS = (  # noqa: SIM905
    "的 一 是 在 不 了 有 和 人 这 中 大 为 上 个 国 我 以 要 他 时 来 用 们 生 到 作 地 于 出 就 分 对 "
    "成 会 可 主 发 年 动 同 工 也 能 下 过 子 说 产 种 面 而 方 后 多 定 行 学 法 所 民 得 经 十 三 之 "
    "进 着 等 部 度 家 电 力 里 如 水 化 高 自 二 理 起 小 物 现 实 加 量 都 两 体 制 机 当 使 点 从 业 "
    "本 去 把 性 好 应 开 它 合 还 因 由 其 些 然 前 外 天 政 四 日 那 社 义 事 平 形 相 全 表 间 样 与 "
    "关 各 重 新 线 内 数 正 心 反 你 明 看 原 又 么 利 比 或 但 质 气 第 向 道 命 此 变 条 我们 他们 "
    "自己 没有 问题 工作 中国 社会 发展 时间 系统 可以 进行 研究 经济 技术 公司 已经 如果 因为 所以 但是 "
    "通过 需要 服务 数据 模型 语言 世界 国家 政府 学生 老师 学校 教育 科学 历史 文化 城市 农村 环境 健康 "
    "医院 医生 音乐 电影 新闻 报道 记者 网络 计算机 软件 程序 代码 算法 人工智能 机器学习 处理器 内存 "
    "存储 请求 响应 今天 明天 昨天 现在 以后 以前 上午 下午 晚上 星期 北京 上海 广州 深圳 香港 台湾 美国 "
    "日本 欧洲 亚洲 非洲 市场 价格 产品 质量 管理 企业 投资 银行 资金 增长 下降 提高 朋友 家庭 孩子 父母 "
    "生活 喜欢 认为 觉得 知道 希望 开始 结束 继续 重要 主要 不同 特别 非常 完全 当然 可能 应该 必须 能够 "
    "一些 许多 所有 每个 任何 其他 什么 怎么 为什么 图书馆 博物馆 飞机场 火车站 出租车 自行车 天气预报 "
    "春节 龙 麒麟 饕餮 魑魅 犹豫 彷徨 璀璨 氤氲 踌躇 缱绻 逶迤 蹉跎 鳞次栉比 醍醐灌顶 筚路蓝缕 "
).split()
_STOPS = ("，", "，", "，", "。", "。", "、", "；", "：", "？", "！", "。\n", "（", "）", "“", "”")


@functools.cache
def english() -> str:
    found: list[Any] = [distribution.metadata for distribution in importlib.metadata.distributions()]
    described = [(metadata["Name"] or "", metadata.get("Description") or "") for metadata in found]
    return "\n".join([*topics.values(), *(text for _, text in sorted(described) if text.isascii())])


@functools.cache
def code() -> str:
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("[a-z]*/*.py")) + sorted(
        Path(sysconfig.get_path("stdlib")).glob("*.py")
    )
    kept = [file for file in files if file.parts[-2] not in {"site-packages", "dist-packages", "test"}]
    return "\n".join(file.read_text(encoding="utf-8", errors="ignore") for file in kept)


@functools.cache
def chinese() -> str:
    chance = random.Random(1)
    by_rank = [1 / (rank + 8) for rank in range(len(_WORDS))]
    words = chance.choices(_WORDS, by_rank, k=_CHINESE_BYTES // 5)
    return "".join(word + (chance.choice(_STOPS) if chance.random() < 0.12 else "") for word in words)


@functools.cache
def mixed() -> str:
    chance = random.Random(2)
    sources = [text.splitlines(keepends=True) for text in (english(), code(), chinese())]
    made = []
    for i in range(30_000):
        lines = chance.choice(sources)
        at = chance.randrange(len(lines))
        made.append("".join(lines[at : at + 2])[:160])
        if i % 5 == 0:
            numbers = [chance.randrange(10**6) for _ in range(4)]
            made.append(
                json.dumps({"id": numbers[0], "values": numbers, "名称": chance.choice(_WORDS), "ok": True}) + "\n"
            )
        if i % 7 == 0:
            made.append(
                f"2026-11-{i % 30 + 1:02}T10:{i % 60:02}:05.{i:06}Z WARN [worker-{i % 16}] 0x{i * 7919:08x}: retry\n"
            )
        if i % 9 == 0:
            made.append(chance.choice(["👍🏽 ok!\n", "🇫🇷🇩🇪 → «été»\n", "Привет, мир! ", "안녕하세요 세계 ", "مرحبا "]))
    return "".join(made)


SOURCES: dict[str, Callable[[], str]] = {"english": english, "code": code, "chinese": chinese, "mixed": mixed}
WORST = {"letter": "a", "space": " ", "emoji": "😀", "U+0300": "\u0300"}


def worst(kind: str, size: int) -> str:
    """So many bytes of one character."""
    return WORST[kind] * (size // len(WORST[kind].encode()))


def slices(kind: str, characters: int, count: int, seed: int) -> list[str]:
    """Different parts of a source, each from the beginning of a word on."""
    source, chance = SOURCES[kind](), random.Random(f"{kind} {characters} {seed}")
    begins = [chance.randrange(max(1, len(source) - characters - 100)) for _ in range(count)]
    space = re.compile(r"\s|[，。]")
    found = [space.search(source, begin) for begin in begins]
    return [source[(m.start() if m else begin) :][:characters] for m, begin in zip(found, begins, strict=True)]
