// One forward pass of the Transformer of tinylm/model.py, by hand: rows in, logits out.
//
// A row is one token of one slot: a slot's next token, or one of several successive tokens (of a prompt, or of
// a draft that is to be checked). Rows of any slots go through the layers side by side.
//
// What a row gives is the same bit for bit whatever is computed beside it, in however many threads, because
//   - every output of a matrix product is one chain of fused multiply-adds along the input, from the first
//     element to the last, worked out by one thread; tiles only choose which chains run side by side;
//   - every other sum is 16 chains, added up in one fixed order;
//   - a row sees the keys of positions 0 to its own in its own slot, and never reads what lies behind them;
//   - nothing else rounds but single additions, products, quotients and roots, whose results IEEE 754 fixes,
//     and the compiler may not merge or reorder them (-ffp-contract=off, no -ffast-math).
// So the bits do not depend on the width of the processor's vectors either.
//
// Matrices lie in panels of 16 outputs: [outputs / 16][inputs][16]. A row times a panel reads it from end to
// end, 16 outputs at a time. The keys of a head lie so too, with positions as outputs: scores are a product
// with the keys; and the values, with positions as inputs: so is their weighted sum.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <system_error>
#include <thread>
#include <unistd.h>
#include <vector>

#if defined(__FMA__)
#include <immintrin.h>
using Lanes = __m256;
static inline Lanes load(const float* at) { return _mm256_loadu_ps(at); }
static inline Lanes all(float x) { return _mm256_set1_ps(x); }
static inline Lanes fma(Lanes a, Lanes b, Lanes c) { return _mm256_fmadd_ps(a, b, c); }
static inline float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
static inline void relax() { _mm_pause(); }
#elif defined(__aarch64__)
#include <arm_neon.h>
using Lanes = float32x4_t;
static inline Lanes load(const float* at) { return vld1q_f32(at); }
static inline Lanes all(float x) { return vdupq_n_f32(x); }
static inline Lanes fma(Lanes a, Lanes b, Lanes c) { return vfmaq_f32(c, a, b); }
static inline float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
static inline void relax() { asm volatile("yield"); }
#else  // no fused multiply-add: two roundings, so other bits than on machines that have it
typedef float Lanes __attribute__((vector_size(16)));
static inline Lanes load(const float* at) { Lanes x; std::memcpy(&x, at, sizeof x); return x; }
static inline Lanes all(float x) { return Lanes{x, x, x, x}; }
static inline Lanes fma(Lanes a, Lanes b, Lanes c) { return a * b + c; }
static inline float fma(float a, float b, float c) { return a * b + c; }
static inline void relax() {}
#endif
static inline void store(float* at, Lanes x) { std::memcpy(at, &x, sizeof x); }

using Int = int64_t;
constexpr Int PANEL = 16;                               // outputs that lie side by side
constexpr Int LANES = sizeof(Lanes) / sizeof(float);    // of them in one vector register
static Int panels(Int outputs) { return (outputs + PANEL - 1) / PANEL; }

// ---- matrix products ----------------------------------------------------------------------------------------

// y[r][o] = x[r][0] w[0][o] + x[r][1] w[1][o] + ... for R rows and P panels, all sums in registers. Meanwhile the
// floats `ahead` come closer, `stride` with each input: weights that are needed next.
template <int R, int P>
static void tile(const float* x, Int x_row, Int inputs, const float* w, Int w_panel, float* y, Int y_row, bool add,
                 const float* ahead, Int stride) {
    constexpr int N = P * PANEL / LANES, EACH = PANEL / LANES;
    Lanes sum[R][N];
    for (int r = 0; r < R; r++)
        for (int n = 0; n < N; n++) sum[r][n] = all(0.0f);
    for (Int k = 0; k < inputs; k++) {
        const float* at = w + k * PANEL;
        if constexpr (R > 1)
            for (int p = 0; p < P; p++) __builtin_prefetch(ahead + p * w_panel + k * stride, 0, 2);
        if constexpr (R < N) {  // keep the fewer of the two in registers: R inputs, or N vectors of weights
            Lanes x_k[R];
            for (int r = 0; r < R; r++) x_k[r] = all(x[r * x_row + k]);
            for (int n = 0; n < N; n++) {
                Lanes w_k = load(at + n / EACH * w_panel + n % EACH * LANES);
                for (int r = 0; r < R; r++) sum[r][n] = fma(x_k[r], w_k, sum[r][n]);
            }
        } else {
            Lanes w_k[N];
            for (int n = 0; n < N; n++) w_k[n] = load(at + n / EACH * w_panel + n % EACH * LANES);
            for (int r = 0; r < R; r++) {
                Lanes x_k = all(x[r * x_row + k]);
                for (int n = 0; n < N; n++) sum[r][n] = fma(x_k, w_k[n], sum[r][n]);
            }
        }
    }
    for (int r = 0; r < R; r++)
        for (int n = 0; n < N; n++) {
            float* to = y + r * y_row + n * LANES;
            store(to, add ? load(to) + sum[r][n] : sum[r][n]);
        }
}

struct Matrix {  // in panels
    const float* weights;
    Int inputs, panel;  // floats from one panel to the next
};

// The outputs of panels `first` to before `last`; y is where the first of them goes. With `add`, y grows by them.
static void product(const float* x, Int x_row, Int rows, Matrix m, Int first, Int last, float* y, Int y_row, bool add) {
    // Eight sums at least must be under way at once: a fused multiply-add takes four cycles, and two begin in each.
    // Up to nine rows wait for memory rather than for sums, and two panels at once are two streams of it.
    for (Int panel = first; panel < last;) {
        const float* w = m.weights + panel * m.panel;
        Int most = rows == 1 ? 4 : rows <= 9 ? 2 : 1, wide = 1;
        while (2 * wide <= std::min(most, last - panel)) wide *= 2;
        Int tiles = wide == 2 ? (rows + 2) / 3 : (rows + 5) / 6;
        for (Int t = 0; t < tiles; t++) {
            Int begin = rows * t / tiles, count = rows * (t + 1) / tiles - begin;
            const float* from = x + begin * x_row;
            float* to = y + begin * y_row + (panel - first) * PANEL;
            // Each of the tiles fetches its part of the panels after these. Beyond the last one nothing is read.
            Int stride = PANEL / tiles;
            const float* ahead = w + wide * m.panel + t * m.inputs * stride;
#define TILE(R, P) \
    case R * 10 + P: tile<R, P>(from, x_row, m.inputs, w, m.panel, to, y_row, add, ahead, stride); break;
            switch (count * 10 + wide) {
                TILE(1, 1) TILE(1, 2) TILE(1, 4) TILE(2, 1) TILE(2, 2) TILE(3, 1) TILE(3, 2)
                TILE(4, 1) TILE(5, 1) TILE(6, 1)
            }
#undef TILE
        }
        panel += wide;
    }
}

// ---- element by element -------------------------------------------------------------------------------------

// f(0), f(1) ... f(n - 1) joined into one number: element i goes to chain i % 16, then the chains in halves.
template <typename F, typename Join> static inline float joined(Int n, float start, F f, Join join) {
    float chain[16];
    for (Int c = 0; c < 16; c++) chain[c] = start;
    Int i = 0;
    for (; i + 16 <= n; i += 16)
        for (Int c = 0; c < 16; c++) chain[c] = join(chain[c], f(i + c));
    for (Int c = 0; i + c < n; c++) chain[c] = join(chain[c], f(i + c));
    for (Int half = 8; half; half /= 2)
        for (Int c = 0; c < half; c++) chain[c] = join(chain[c], chain[c + half]);
    return chain[0];
}
static inline float plus(float a, float b) { return a + b; }
static inline float larger(float a, float b) { return b > a ? b : a; }

// e^x within two units in the last place: 2^n e^r with x = n ln 2 + r, and a Taylor polynomial for e^r.
// What lies beyond the range of floats gives its ends; NaN stays NaN.
static inline float exponential(float x) {
    x = x < -87.0f ? -87.0f : x;
    x = x > 88.0f ? 88.0f : x;
    float shifted = fma(x, 1.44269504f, 12582912.0f);  // 1.5 x 2^23: the last bits of the sum are n
    float n = shifted - 12582912.0f;
    float r = fma(n, -1.42860677e-6f, fma(n, -0.693145752f, x));  // ln 2 in two parts; n times the first is exact
    float y = fma(fma(1.0f / 5040, r, 1.0f / 720), r, 1.0f / 120);
    y = fma(fma(fma(fma(fma(y, r, 1.0f / 24), r, 1.0f / 6), r, 0.5f), r, 1.0f), r, 1.0f);
    int32_t bits, power;
    std::memcpy(&bits, &y, 4);
    std::memcpy(&power, &shifted, 4);
    bits += int32_t(uint32_t(power) << 23);
    std::memcpy(&y, &bits, 4);
    return y;
}

// RMSNorm: x over its root mean square, times a gain.
static inline void normalize(const float* x, const float* gain, Int n, float epsilon, float* y) {
    float scale = 1.0f / std::sqrt(joined(n, 0.0f, [=](Int i) { return x[i] * x[i]; }, plus) / float(n) + epsilon);
    for (Int i = 0; i < n; i++) y[i] = x[i] * scale * gain[i];
}

// RoPE: turn each pair (i, i + n/2) by the angle of a position, of which the tables hold cosines and sines.
static inline void rotate(float* x, const float* cosines, const float* sines, Int n) {
    for (Int i = 0, j = n / 2; j < n; i++, j++) {
        float first = x[i], second = x[j];
        x[i] = first * cosines[i] - second * sines[i];
        x[j] = second * cosines[j] + first * sines[j];
    }
}

// ---- threads ------------------------------------------------------------------------------------------------

constexpr int SPINS = 4000;  // some tens of microseconds: then others may have the core

template <typename Condition> static void wait_until(Condition condition) {
    for (int spins = 0; !condition(); spins++)
        if (spins < SPINS) relax(); else std::this_thread::yield();
}

struct Barrier {  // all threads have arrived before any goes on
    int threads;
    std::atomic<int> arrived{0}, round{0};
    void wait() {
        if (threads == 1) return;
        int now = round.load();
        if (arrived.fetch_add(1) + 1 == threads) {
            arrived.store(0);
            round.fetch_add(1);
            return;
        }
        wait_until([&] { return round.load() != now; });
    }
};

class Team {  // threads that wait for work; they sleep while there is none
  public:
    // f(thread, barrier) in `threads` threads at once, this one among them; alone where the team is at work.
    template <typename F> void run(int threads, F f) {
        std::unique_lock<std::mutex> turn(turn_, std::defer_lock);
        if (threads == 1 || pid_ != getpid() || !turn.try_lock()) {  // threads do not survive a fork
            Barrier alone{1};
            return f(0, alone);
        }
        Barrier barrier{threads};
        auto call = [](void* f, int thread, Barrier& barrier) { (*static_cast<F*>(f))(thread, barrier); };
        try {
            for (; size_ < threads - 1; size_++) std::thread(&Team::work, this, size_ + 1, round_.load()).detach();
        } catch (const std::system_error&) {  // no more threads are to be had
            Barrier alone{1};
            return f(0, alone);
        }
        {
            std::lock_guard<std::mutex> lock(mutex_);
            call_ = call, f_ = &f, barrier_ = &barrier, threads_ = threads;
            round_.fetch_add(1);
        }
        wake_.notify_all();
        f(0, barrier);
        barrier.wait();                                            // all have computed
        wait_until([&] { return leaving_.load() == threads - 1; });  // and none looks at the barrier any more
        leaving_.store(0);
    }

  private:
    void work(int thread, int seen) {
        while (true) {
            for (int spins = 0; spins < SPINS && round_.load() == seen; spins++) relax();
            std::unique_lock<std::mutex> lock(mutex_);
            wake_.wait(lock, [&] { return round_.load() != seen; });
            seen = round_.load();
            if (thread >= threads_) continue;
            auto call = call_;
            auto [f, barrier] = std::pair(f_, barrier_);
            lock.unlock();
            call(f, thread, *barrier);
            barrier->wait();
            leaving_.fetch_add(1);
        }
    }
    std::mutex turn_, mutex_;
    std::condition_variable wake_;
    std::atomic<int> round_{0}, leaving_{0};
    int size_ = 0, threads_ = 1;
    pid_t pid_ = getpid();
    void (*call_)(void*, int, Barrier&) = nullptr;
    void* f_ = nullptr;
    Barrier* barrier_ = nullptr;
};
static Team& team = *new Team;  // never destroyed: its threads may outlive whatever ends the process

// ---- the model ----------------------------------------------------------------------------------------------

struct Layer {
    const float *attention_norm, *qkv, *q_norm, *k_norm, *o, *mlp_norm, *gate_up, *down;
};
struct Model {
    Int layers, width, mlp_width, heads, kv_heads, head_size, vocabulary;
    Int capacity;  // positions of a slot, a multiple of 16
    Int slots;
    float epsilon;
    const float *cosines, *sines;  // [positions, head size]
    const Layer* layer;
    const float *norm, *head;
    float *keys;    // [layers, slots, kv heads, capacity / 16, head size, 16]
    float *values;  // [layers, slots, kv heads, head size / 16 rounded up, capacity, 16]
};
struct Row {
    int32_t slot, position;
    int32_t logits;  // which row of the logits it fills, or -1
};

namespace {
struct Pass {
    const Model& m;
    const Row* rows;
    Int count;
    float* x;        // [rows, width]: the residual stream, which begins as embeddings
    double* logits;  // [wanted, vocabulary]
    Int q = m.heads * m.head_size, kv = m.kv_heads * m.head_size, qkv = q + 2 * kv;
    std::vector<float> projected = std::vector<float>(count * qkv), attended = std::vector<float>(count * q),
                       hidden = std::vector<float>(count * m.mlp_width);

    Int head_panels() const { return panels(m.head_size); }
    float* keys_of(Int layer, Int slot, Int head) const {
        return m.keys + ((layer * m.slots + slot) * m.kv_heads + head) * m.capacity * m.head_size;
    }
    float* values_of(Int layer, Int slot, Int head) const {
        return m.values + ((layer * m.slots + slot) * m.kv_heads + head) * m.capacity * head_panels() * PANEL;
    }

    // Keys, normalised and turned, and values of one head of a row into its slot.
    void remember(Int layer, Int r, Int head) {
        Int n = m.head_size, position = rows[r].position;
        float* key = &projected[r * qkv + q + head * n];
        const float* value = key + kv;
        normalize(key, m.layer[layer].k_norm, n, m.epsilon, key);
        rotate(key, m.cosines + position * n, m.sines + position * n, n);
        float* keys = keys_of(layer, rows[r].slot, head) + position / PANEL * PANEL * n + position % PANEL;
        float* values = values_of(layer, rows[r].slot, head) + position * PANEL;
        for (Int i = 0; i < n; i++) keys[i * PANEL] = key[i];
        for (Int i = 0; i < n; i++) values[i / PANEL * m.capacity * PANEL + i % PANEL] = value[i];
    }

    // Attention of the query heads that share one head of keys, over positions 0 to the row's own.
    void attend(Int layer, Int r, Int head, float* scores, float* sums) {
        Int n = m.head_size, group = m.heads / m.kv_heads, seen = rows[r].position + 1;
        Int length = panels(seen) * PANEL, wide = head_panels() * PANEL;
        float* query = &projected[r * qkv + head * group * n];
        for (Int g = 0; g < group; g++) {
            normalize(query + g * n, m.layer[layer].q_norm, n, m.epsilon, query + g * n);
            rotate(query + g * n, m.cosines + (seen - 1) * n, m.sines + (seen - 1) * n, n);
        }
        Matrix keys{keys_of(layer, rows[r].slot, head), n, n * PANEL};
        product(query, n, group, keys, 0, panels(seen), scores, length, false);
        const float scale = 1.0f / std::sqrt(float(n));
        float* out = &attended[r * q + head * group * n];
        std::vector<float> total(group);
        for (Int g = 0; g < group; g++) {
            float* s = scores + g * length;
            float most = joined(seen, s[0], [=](Int i) { return s[i]; }, larger);
            for (Int i = 0; i < seen; i++) s[i] = exponential((s[i] - most) * scale);
            total[g] = joined(seen, 0.0f, [=](Int i) { return s[i]; }, plus);
        }
        Matrix values{values_of(layer, rows[r].slot, head), seen, m.capacity * PANEL};
        product(scores, length, group, values, 0, head_panels(), sums, wide, false);
        for (Int g = 0; g < group; g++)
            for (Int i = 0; i < n; i++) out[g * n + i] = sums[g * wide + i] / total[g];
    }

    void compute(int thread, Barrier& barrier) {
        Int group = m.heads / m.kv_heads, D = m.width, M = m.mlp_width;
        auto from = [&](Int all, int t) { return all * t / barrier.threads; };
        auto share = [&](Int all, auto work) { work(from(all, thread), from(all, thread + 1)); };
        std::vector<float> normed(count * D), both(count * 2 * M);
        std::vector<float> scores(group * m.capacity), sums(group * head_panels() * PANEL);

        for (Int l = 0; l < m.layers; l++) {
            const Layer& layer = m.layer[l];
            // Each thread normalises for itself: that is cheaper than to wait for others.
            for (Int r = 0; r < count; r++) normalize(x + r * D, layer.attention_norm, D, m.epsilon, &normed[r * D]);
            share(panels(qkv), [&](Int first, Int last) {
                float* to = &projected[first * PANEL];
                product(&normed[0], D, count, {layer.qkv, D, D * PANEL}, first, last, to, qkv, false);
            });
            barrier.wait();
            share(count * m.kv_heads, [&](Int first, Int last) {
                for (Int i = first; i < last; i++) remember(l, i / m.kv_heads, i % m.kv_heads);
            });
            barrier.wait();
            share(count * m.kv_heads, [&](Int first, Int last) {
                for (Int i = first; i < last; i++) attend(l, i / m.kv_heads, i % m.kv_heads, &scores[0], &sums[0]);
            });
            barrier.wait();
            share(panels(D), [&](Int first, Int last) {
                product(&attended[0], q, count, {layer.o, q, q * PANEL}, first, last, x + first * PANEL, D, true);
            });
            barrier.wait();
            for (Int r = 0; r < count; r++) normalize(x + r * D, layer.mlp_norm, D, m.epsilon, &normed[r * D]);
            // SwiGLU. Panels of gate and up take turns, so that one thread has both of an element.
            share(panels(M), [&](Int first, Int last) {
                Int wide = 2 * (last - first) * PANEL;
                Matrix gate_up{layer.gate_up, D, D * PANEL};
                product(&normed[0], D, count, gate_up, 2 * first, 2 * last, &both[0], wide, false);
                for (Int r = 0; r < count; r++)
                    for (Int p = 0; p < last - first; p++) {
                        const float *gate = &both[r * wide + 2 * p * PANEL], *up = gate + PANEL;
                        float* to = &hidden[r * M + (first + p) * PANEL];
                        for (Int i = 0; i < PANEL; i++) to[i] = gate[i] / (1.0f + exponential(-gate[i])) * up[i];
                    }
            });
            barrier.wait();
            share(panels(D), [&](Int first, Int last) {
                product(&hidden[0], M, count, {layer.down, M, M * PANEL}, first, last, x + first * PANEL, D, true);
            });
            barrier.wait();
        }

        Int wanted = 0;
        std::vector<double*> to(count);
        for (Int r = 0; r < count; r++)
            if (rows[r].logits >= 0) {
                normalize(x + r * D, m.norm, D, m.epsilon, &normed[wanted * D]);
                to[wanted++] = logits + rows[r].logits * m.vocabulary;
            }
        if (wanted)
            share(panels(m.vocabulary), [&](Int first, Int last) {
                Int wide = (last - first) * PANEL, end = std::min(last * PANEL, m.vocabulary);
                std::vector<float> out(wanted * wide);
                product(&normed[0], D, wanted, {m.head, D, D * PANEL}, first, last, &out[0], wide, false);
                for (Int r = 0; r < wanted; r++)
                    for (Int i = first * PANEL; i < end; i++) to[r][i] = out[r * wide + i - first * PANEL];
            });
    }
};
}  // namespace

// Move rows on: their keys and values go into their slots, their logits where they are wanted. Rows of one slot
// stand in order of position. Nothing is checked here. x is overwritten.
extern "C" void tinylm_step(const Model* model, Int count, const Row* rows, float* x, double* logits, int threads) {
    Pass pass{*model, rows, count, x, logits};
    team.run(threads, [&](int thread, Barrier& barrier) { pass.compute(thread, barrier); });
}

// For the tests.
extern "C" void tinylm_exponential(const float* x, float* y, Int count) {
    for (Int i = 0; i < count; i++) y[i] = exponential(x[i]);
}
