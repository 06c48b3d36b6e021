"""Modules that need no page, run in the browser."""

import json
from itertools import pairwise

from tests.server.static.visit import Visit

STREAM = (
    '\ufeff: hello\r\ndata: {"a": "é\U0001f600"}\r\n\r\ndata:one\r\ndata: two\r\rretry: 5\n\n'
    "id: 3\ndata: three\n\ndata: never ended"
)


def test_event_streams_are_read_whatever_the_pieces(visit: Visit) -> None:
    data = list(STREAM.removeprefix("\ufeff").encode())
    events = visit.page.evaluate(
        """async (bytes) => {
            const { eventData } = await import("/static/sse.js");
            const read = async (...cuts) => {
                const stream = new ReadableStream({ start(controller) {
                    let from = 0;
                    for (const cut of [...cuts, bytes.length]) {
                        controller.enqueue(new Uint8Array(bytes.slice(from, cut)));
                        from = cut;
                    }
                    controller.close();
                } });
                const events = [];
                for await (const data of eventData(stream)) events.push(data);
                return JSON.stringify(events);
            };
            const all = new Set([await read(...bytes.keys())]);
            for (const cut of bytes.keys()) all.add(await read(cut));
            return [...all];
        }""",
        data,
    )
    assert [json.loads(found) for found in events] == [['{"a": "é\U0001f600"}', "one\ntwo", "three"]]


def test_answers_are_compared_by_token(visit: Visit) -> None:
    lists = [[], [1], [1, 2], [1, 3], [2, 2], [1, 2, 3]]
    found = visit.page.evaluate(
        """async (lists) => {
            const { firstDifference } = await import("/static/compare.js");
            const tokens = lists.map((ids) => ids.map((id) => ({ id })));
            return tokens.map((one) => tokens.map((other) => firstDifference(one, other)));
        }""",
        lists,
    )
    for row, one in zip(found, lists, strict=True):
        for place, other in zip(row, lists, strict=True):
            assert (place == -1) == (one == other)
            assert place == -1 or (one[:place] == other[:place] and one[place : place + 1] != other[place : place + 1])
    assert all(found[row][column] == found[column][row] for row, column in pairwise(range(len(lists))))
