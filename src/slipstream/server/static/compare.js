/** Whether two answers are the same. */

/** The place of the first token in which two lists differ, by id; -1 if they do not. A missing token differs too. */
export function firstDifference(one, other) {
  const length = Math.max(one.length, other.length);
  for (let place = 0; place < length; place++) {
    if (one[place]?.id !== other[place]?.id) return place;
  }
  return -1;
}
