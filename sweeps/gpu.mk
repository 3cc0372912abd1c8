# Checks on a GPU, which write to build/gpu or reports. Each measurement stops after at most nine minutes; gpu-2 has two, gpu-3 four, gpu-7
# seven. The same target again continues with the missing ones, also on another machine that has runs/ and build/. PY=python3 replaces the
# Python of .venv.
PY ?= $(BIN)/python
GPU := build/gpu
# Without --foreground the signal would arrive twice, and the second signal kills.
TIMED := timeout --foreground --signal=INT --kill-after=20 520
BENCH = mkdir -p $(GPU) && $(TIMED) $(PY) -m attnlab bench
RUN = $(TIMED) $(PY) -m attnlab

M25 := data.length=512 model.n_layers=8 model.dim=512 model.n_heads=8 data.batch_size=64
M124 := data=copy data.symbols=50302 data.length=1024 model.n_layers=12 model.dim=768 model.n_heads=12 data.batch_size=24  # random tokens of GPT-2's vocabulary
FAST := trainer.precision=bf16-mixed optim.compile=true
STEP := model.dim=4096 model.n_heads=32 model.ffn_width=11008 trainer.precision=bf16-true
AT_M := rope_vs_learned scaled_vs_unscaled mqar_attn_vs_rnn decode_bandwidth attention_scaling output_gate mla_vs_gqa

.PHONY: gpu-1 gpu-2 gpu-3 gpu-4 gpu-5 gpu-6 gpu-7 gpu-8 $(AT_M:%=gpu-7-%)

gpu-1:  ## run the invariants that only a GPU can break; write build/gpu/laws.json
	$(TIMED) $(PY) -m pytest tests/gpu/test_gpu_invariants.py --told $(GPU)/laws.json

gpu-2: $(GPU)/train_25m.json $(GPU)/train_124m.json  ## measure training against nanoGPT's loop, at 25M and 124M parameters

gpu-3: $(GPU)/contexts_1.json $(GPU)/contexts_64.json $(GPU)/decode.json $(GPU)/attention.json  ## measure decoding and kernels

gpu-4: $(GPU)/sharing.json  ## measure runs per hour by the number of runs that share the GPU

gpu-5:  ## run gqa_vs_mha at size M
	$(RUN) +experiment=gqa_vs_mha size=M arms=[mha,gqa,mqa] corpora=[code_bpe] optim.compile=true logger=none

gpu-6:  ## run the ladder of gqa_vs_mha, from its sizes for two cores up
	$(RUN) ladder +experiment=gqa_vs_mha ladder=card sweep.slots_per_gpu=4 logger=none

gpu-7: $(AT_M:%=gpu-7-%)  ## run seven more experiments at size M; gpu-7-NAME runs one of them

$(AT_M:%=gpu-7-%): gpu-7-%:
	$(RUN) +experiment=$* size=M logger=none

gpu-8:  ## run the sweep engine on a GPU; write build/gpu/engine.json
	$(TIMED) $(PY) -m pytest tests/gpu/test_gpu_sweeps.py --told $(GPU)/engine.json

$(GPU)/train_25m.json: ; $(BENCH) train $(M25) $(FAST) --json > $@.part && mv $@.part $@
$(GPU)/train_124m.json: ; $(BENCH) train $(M124) $(FAST) --json > $@.part && mv $@.part $@
$(GPU)/contexts_1.json: ; $(BENCH) contexts $(STEP) model.n_layers=4 data.batch_size=1 --json > $@.part && mv $@.part $@
$(GPU)/contexts_64.json: ; $(BENCH) contexts $(STEP) model.n_layers=1 data.batch_size=64 --json > $@.part && mv $@.part $@
$(GPU)/decode.json: ; $(BENCH) decode trainer.precision=bf16-true --json > $@.part && mv $@.part $@
$(GPU)/attention.json: ; $(BENCH) attention model.dim=512 --json > $@.part && mv $@.part $@
$(GPU)/sharing.json: ; $(BENCH) sharing --json > $@.part && mv $@.part $@
