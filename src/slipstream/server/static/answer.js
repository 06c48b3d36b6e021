/** An answer as it arrives: text, tokens and figures, gathered from the chunks of a stream. Knows no page. */

const LEAST_TIME = 100; // milliseconds; a speed seen in less is noise

/**
 * A token as the page keeps it: text, log-probability, the drafter whose guess was accepted ("" where the model chose
 * it itself), and the round it came in. `id` is there while the answer is fresh; stored answers do without.
 */
function token({ id, text, logprob, accepted, drafter, round }) {
  return { id, text, logprob, drafter: accepted ? drafter || "a drafter" : "", round };
}

export class Answer {
  text = "";
  tokens = [];
  finish = null;
  /** [when, in milliseconds of the page's clock, and number of tokens until then] of each chunk that had some. */
  arrivals = [];
  usage = null;
  timings = null;
  speculation = null;
  started = performance.now();

  /** Takes a chunk in. */
  add(chunk) {
    this.usage = chunk.usage ?? this.usage;
    this.timings = chunk.timings ?? this.timings;
    this.speculation = chunk.speculation ?? this.speculation;
    const choice = chunk.choices?.[0];
    if (!choice) return;
    this.finish = choice.finish_reason ?? this.finish;
    this.text += choice.delta?.content ?? "";
    const fresh = (choice.tokens ?? []).map(token);
    if (fresh.length) {
      this.tokens.push(...fresh);
      this.arrivals.push([performance.now(), this.tokens.length]);
    }
  }

  /** Tokens per second of decoding: what the server measured, before that what was seen here; null if unknown. */
  get tokensPerSecond() {
    if (this.timings) return this.timings.predicted_per_second;
    const [first, last] = [this.arrivals[0], this.arrivals.at(-1)];
    const elapsed = first ? last[0] - first[0] : 0;
    return elapsed >= LEAST_TIME ? ((last[1] - first[1]) / elapsed) * 1000 : null;
  }

  /** Tokens that a forward of the model yielded on average; null if unknown. */
  get tokensPerRound() {
    const rounds = new Set(this.tokens.map(({ round }) => round)).size;
    return this.speculation?.mean_accepted_length ?? (rounds ? this.tokens.length / rounds : null);
  }

  /** How many times as fast as without speculation, by the server's estimate; null if it has none. */
  get speedUp() {
    return this.speculation?.estimated_speed_up ?? null;
  }

  /** What is worth keeping beside the text. */
  get figures() {
    return {
      tokens: this.usage?.completion_tokens ?? this.tokens.length,
      promptTokens: this.usage?.prompt_tokens ?? null,
      cachedTokens: this.usage?.prompt_tokens_details?.cached_tokens ?? null,
      tokensPerSecond: this.tokensPerSecond,
      tokensPerRound: this.tokensPerRound,
      speedUp: this.speedUp,
      acceptanceRate: this.speculation?.acceptance_rate ?? null,
      explanation: this.speculation?.explanation ?? "",
    };
  }
}
