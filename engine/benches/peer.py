#!/usr/bin/env python3
"""farmhand beside llama.cpp, as llama-cpp-python builds it: the same file, the same threads, one run, alternating
repetitions, medians. Started by peer.sh, which installs the peer.

Both engines stay loaded in a process of their own, each with its cache filled to the depth, and take turns: one repetition
of one, one of the other. What disturbs the machine so disturbs both.
"""
import argparse, ctypes, json, os, statistics, subprocess, sys, time

KV_TYPES = {"f16": 1, "q8_0": 8, "q4_0": 2}


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("models", nargs="*", help="model files (GGUF)")
    p.add_argument("--farmhand", help="the farmhand binary to measure")
    p.add_argument("-t", "--threads", default="1,2")
    p.add_argument("-d", "--depths", default="0,4096")
    p.add_argument("-p", "--prompt", type=int, default=512, help="tokens of a prefill at depth 0; 0 for none")
    p.add_argument("-n", "--decode", type=int, default=16, help="tokens of a decode repetition; 0 for none")
    p.add_argument("-r", "--repetitions", type=int, default=5)
    p.add_argument("--kv", default="f16", help="types of the cache, separated by commas: f16, q8_0")
    p.add_argument("--flash", default="1", help="flash attention of the peer: 1, 0 or 1,0 for a row of each")
    p.add_argument("-o", "--output", help="write rows as JSON lines to this file too")
    p.add_argument("--worker", help=argparse.SUPPRESS)
    p.add_argument("--requantise", nargs=2, metavar=("TYPE", "OUT"), help=argparse.SUPPRESS)
    args = p.parse_args()
    if args.worker:
        return Peer(json.loads(args.worker)).serve()
    if args.requantise:
        return requantise(args.models[0], *args.requantise)
    print("| model | threads | kv | test | peer FA | farmhand token/s | peer token/s | ratio | spread of ratios |"
          " farmhand peak MiB | peer peak MiB |")
    print("| --- | ---: | --- | --- | ---: | ---: | ---: | ---: | --- | ---: | ---: |", flush=True)
    numbers = lambda text: [int(x) for x in text.split(",")]
    for model in args.models:
        for kv in args.kv.split(","):
            for threads in numbers(args.threads):
                for flash in numbers(args.flash):
                    for depth in numbers(args.depths):
                        tests = [("decode", args.decode)]
                        if depth == 0:
                            tests.append(("prefill", args.prompt))
                        for kind, tokens in tests:
                            if tokens:
                                pair(args, model, kv, threads, flash, depth, kind, tokens)


def pair(args, model, kv, threads, flash, depth, kind, tokens):
    cell = dict(model=model, kv=kv, threads=threads, flash=flash, depth=depth, kind=kind, tokens=tokens)
    ours = subprocess.Popen(
        [args.farmhand, "bench", "-m", model, "-t", str(threads), "-d", str(depth), "-ctk", kv, "-ctv", kv,
         "-p", str(tokens if kind == "prefill" else 0), "-n", str(tokens if kind == "decode" else 0), "--paced"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert ours.stdout.readline() == "ready\n", "farmhand did not get ready"
    peer = subprocess.Popen([sys.executable, __file__, "--worker", json.dumps(cell)],
                            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert peer.stdout.readline() == "ready\n", "the peer did not get ready"

    def once(process):
        process.stdin.write("go\n")
        process.stdin.flush()
        return int(process.stdout.readline())

    times = {ours: [], peer: []}
    for i in range(args.repetitions + 1):
        for process in ([ours, peer] if i % 2 else [peer, ours]):
            ns = once(process)
            if i > 0:  # the first turn warms both up
                times[process].append(ns)
    peaks = {}
    for process in (ours, peer):
        with open(f"/proc/{process.pid}/status") as f:
            peaks[process] = next(int(line.split()[1]) / 1024 for line in f if line.startswith("VmHWM"))
        process.stdin.close()
        process.wait()
    speed = {p: tokens * 1e9 / statistics.median(t) for p, t in times.items()}
    ratios = [b / a for a, b in zip(times[ours], times[peer])]
    ratio = statistics.median(ratios)
    test = f"{'pp' if kind == 'prefill' else 'tg'}{tokens}" + (f" @ d{depth}" if depth else "")
    print(f"| {os.path.basename(model)} | {threads} | {kv} | {test} | {flash} | {speed[ours]:.2f} | {speed[peer]:.2f} |"
          f" {ratio:.2f} | {min(ratios):.2f} to {max(ratios):.2f} | {peaks[ours]:.0f} | {peaks[peer]:.0f} |", flush=True)
    if args.output:
        row = dict(cell, farmhand_tps=speed[ours], peer_tps=speed[peer], ratio=ratio, ratios=ratios,
                   farmhand_peak_mib=peaks[ours], peer_peak_mib=peaks[peer])
        with open(args.output, "a") as f:
            f.write(json.dumps(row) + "\n")


class Peer:
    """llama.cpp through its C interface, as a worker that runs a repetition for every line it reads."""

    def __init__(self, cell):
        import llama_cpp as L
        self.L, self.cell = L, cell
        quiet = L.llama_log_callback(lambda level, text, user: None)
        self.quiet = quiet
        L.llama_log_set(quiet, None)
        L.llama_backend_init()
        self.model = L.llama_model_load_from_file(cell["model"].encode(), L.llama_model_default_params())
        c = L.llama_context_default_params()
        c.n_ctx = cell["depth"] + cell["tokens"]
        c.n_batch = 2048
        c.n_ubatch = 512
        c.n_threads = c.n_threads_batch = cell["threads"]
        c.type_k = c.type_v = KV_TYPES[cell["kv"]]
        c.flash_attn_type = cell["flash"]
        self.ctx = L.llama_init_from_model(self.model, c)
        assert self.ctx, "the peer refused this context"
        self.vocab = L.llama_vocab_n_tokens(L.llama_model_get_vocab(self.model))
        self.seed = 1

    def ids(self, n):
        out = []
        for _ in range(n):
            self.seed = (self.seed * 6364136223846793005 + 1442695040888963407) % 2**64
            out.append((self.seed >> 33) % self.vocab)
        return (ctypes.c_int32 * n)(*out)

    def run(self, ids):
        for at in range(0, len(ids), 2048):
            part = (ctypes.c_int32 * min(2048, len(ids) - at))(*ids[at:at + 2048])
            code = self.L.llama_decode(self.ctx, self.L.llama_batch_get_one(part, len(part)))
            assert code == 0, code
        self.L.llama_synchronize(self.ctx)

    def serve(self):
        L, depth, tokens = self.L, self.cell["depth"], self.cell["tokens"]
        memory = L.llama_get_memory(self.ctx)
        self.run(self.ids(min(tokens, 32)))
        L.llama_memory_seq_rm(memory, 0, 0, -1)
        if depth:
            self.run(self.ids(depth))
        print("ready", flush=True)
        for _ in sys.stdin:
            L.llama_memory_seq_rm(memory, 0, depth, -1)
            ids = self.ids(tokens)
            begun = time.perf_counter_ns()
            if self.cell["kind"] == "prefill":
                self.run(ids)
            else:
                for i in range(tokens):
                    self.run((ctypes.c_int32 * 1)(ids[i]))
            print(time.perf_counter_ns() - begun, flush=True)


def requantise(model, to, out):
    import llama_cpp as L
    params = L.llama_model_quantize_default_params()
    params.ftype = {"Q4_0": 2, "Q8_0": 7, "Q4_K_M": 15, "F16": 1}[to]
    params.allow_requantize = True
    L.llama_backend_init()
    assert L.llama_model_quantize(model.encode(), out.encode(), ctypes.byref(params)) == 0


main()
