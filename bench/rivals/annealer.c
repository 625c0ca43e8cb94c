/* A plain C rival for the compiled annealer: the program a careful physicist would write.
 *
 * Linear energy, Glauber rule, random order, M covers routed to S destinations. Every context keeps
 * its P integer margins as int16, patterns lie column by column as int8, and a proposal recomputes
 * the energy change by one contiguous pass over the P patterns of each of the S contexts it touches.
 * The loops are written so that gcc vectorises them. It draws the same random numbers in the same
 * order as mcover.discrete.kernels, so that both walk the same trajectory.
 *
 *     gcc -O3 -march=native -shared -fPIC annealer.c -o annealer.so -lm
 */
#include <math.h>
#include <stdint.h>

static uint64_t rotl(uint64_t x, int k) { return (x << k) | (x >> (64 - k)); }

static uint64_t next64(uint64_t *s) {
    uint64_t result = rotl(s[0] + s[3], 23) + s[0], t = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = rotl(s[3], 45);
    return result;
}

/* Energy change of one context, in integer margins: sum of max(0, -m') - max(0, -m). */
static int32_t change(const int16_t *restrict m, const int8_t *restrict g, int step, int P) {
    int32_t sum = 0;
    for (int mu = 0; mu < P; mu++) {
        int16_t before = m[mu], after = (int16_t)(before - step * g[mu]);
        int16_t lost = before < 0 ? before : 0, kept = after < 0 ? after : 0;
        sum += (int16_t)(lost - kept);
    }
    return sum;
}

static void flip(int16_t *restrict m, const int8_t *restrict g, int step, int P) {
    for (int mu = 0; mu < P; mu++) m[mu] = (int16_t)(m[mu] - step * g[mu]);
}

/* Margins of every context from scratch, and the total energy in units of 1 / (S sqrt(N)).
 *   G (N, P) int8, inverse (S, N, M) uint8, w (M, N) int8, m (S*M, P) int16
 */
int64_t prepare(const int8_t *G, const uint8_t *inverse, const int8_t *w, int16_t *m, int N, int P,
                int M, int S) {
    int64_t energy = 0;
    for (int64_t i = 0; i < (int64_t)S * M * P; i++) m[i] = 0;
    for (int s = 0; s < S; s++)
        for (int q = 0; q < N; q++)
            for (int b = 0; b < M; b++) {
                int16_t *row = m + ((int64_t)s * M + inverse[((int64_t)s * N + q) * M + b]) * P;
                /* adding w is subtracting a step of -w */
                flip(row, G + (int64_t)q * P, -w[(int64_t)b * N + q], P);
            }
    for (int64_t i = 0; i < (int64_t)S * M * P; i++) energy += m[i] < 0 ? -m[i] : 0;
    return energy;
}

/* One sweep of N*M proposals at each temperature; fills accepted[t] and energies[t]. */
void anneal(const int8_t *G, const uint8_t *inverse, int8_t *w, int16_t *m, int N, int P, int M,
            int S, const double *temperatures, int sweeps, uint64_t *rng, int64_t *accepted,
            int64_t *energies, int64_t energy) {
    double unit = 1.0 / (S * sqrt((double)N));
    uint64_t moves = (uint64_t)N * M;
    for (int t = 0; t < sweeps; t++) {
        double scale = unit / temperatures[t];
        accepted[t] = 0;
        for (uint64_t i = 0; i < moves; i++) {
            uint64_t index = ((next64(rng) >> 32) * moves) >> 32;
            double u = (double)(next64(rng) >> 11) * 0x1p-53;
            int q = (int)(index / M), b = (int)(index % M), step = 2 * w[(int64_t)b * N + q];
            const int8_t *g = G + (int64_t)q * P;
            int32_t dE = 0;
            for (int s = 0; s < S; s++) {
                int c = s * M + inverse[((int64_t)s * N + q) * M + b];
                dE += change(m + (int64_t)c * P, g, step, P);
            }
            if (u >= 1.0 / (1.0 + exp(dE * scale))) continue;
            for (int s = 0; s < S; s++) {
                int c = s * M + inverse[((int64_t)s * N + q) * M + b];
                flip(m + (int64_t)c * P, g, step, P);
            }
            w[(int64_t)b * N + q] = (int8_t)-w[(int64_t)b * N + q];
            energy += dE;
            accepted[t]++;
        }
        energies[t] = energy;
    }
}
