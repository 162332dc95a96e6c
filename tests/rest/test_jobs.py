"""Tests of query jobs: creation, waiting, download of result pages despite failures, and
deletion.
"""

from __future__ import annotations

import csv
import io
import json
import random
import tempfile
import time

import pytest

from sfpubsub.auth.session import Session
from sfpubsub.config import RestTimings
from sfpubsub.emulator.server import EmulatorServer
from sfpubsub.errors import (
    LocalProtocolError,
    ReadExpiredError,
    RemoteProtocolError,
    RequestRefusedError,
    StreamUnavailableError,
)
from sfpubsub.rest import OrgReader
from sfpubsub.rest.results import LineCounter
from tests.auth.servers import Reply
from tests.conftest import PATIENCE
from tests.emulator.records.support import fill_orders, forget_peak, peak_mb

from .conftest import ORDERS
from .support import QUICK, Sessions, proxy_to, reader_of

COLUMNS = ("Id", "Name", "Notes__c")
SOQL = f"SELECT {', '.join(COLUMNS)} FROM Order__c"
JOB = "750000000000001AAA"
RESULTS = b"/results?"

# Memory that a page may need besides its file, which has 20 MB: buffers, a row, and the emulator in
# this process.
GROWTH_MB = 10.0


def completed_job(reader, soql=SOQL, **options):
    """Create a job, wait until it is complete, and return it."""
    made = reader.jobs.create(soql, **options)
    return reader.jobs.wait(made.id, deadline=time.monotonic() + PATIENCE)


def names(page):
    """Return the second value, the name, of each row."""
    return [row[1] for row in page.rows()]


@pytest.fixture
def file():
    """Return an empty temporary file for a page."""
    with tempfile.TemporaryFile() as made:
        yield made


@pytest.fixture(scope="module")
def job(org):
    """A completed query job for all orders, shared by the tests; no test may delete it."""
    return completed_job(reader_of(org))


def test_reading_a_page_uses_constant_memory(org, file):
    """A page of 20,000 rows is stored in its file and read row by row, with at most 10 MB of
    additional memory.
    """
    reader = reader_of(org)
    job = completed_job(reader)
    assert (job.object, job.state, job.records_processed) == ("Order__c", "JobComplete", ORDERS)
    forget_peak()
    before = peak_mb()
    page = reader.jobs.results(job.id, file, columns=COLUMNS)
    assert (page.columns, page.has_header) == (COLUMNS, True)
    assert (page.records, page.next_locator) == (ORDERS, None)
    for number, row in enumerate(page.rows(), 1):
        assert row == [f"a00SB{number:010d}AAA", f"order {number}", "x" * 1000]
    assert number == ORDERS
    assert peak_mb() - before < GROWTH_MB
    reader.jobs.delete(job.id)


def test_pages_continue_by_locator_in_a_new_reader(org, job, file):
    """A new reader with only the job's id and the locator continues with the next page, and every
    row is read once.
    """
    noted, found = None, []
    while True:
        reader = reader_of(org)  # has no state of earlier pages
        page = reader.jobs.results(job.id, file, columns=COLUMNS, locator=noted, max_records=8000)
        found += names(page)
        assert names(page) == found[-page.records :]  # the rows can be read again
        noted = page.next_locator
        if noted is None:
            break
    assert found == [f"order {number}" for number in range(1, ORDERS + 1)]


@pytest.mark.parametrize("passing", [20, 100, 1_000, 1_000_000])
def test_page_is_fetched_again_after_a_broken_connection(org, job, file, passing):
    """A page whose connection breaks twice is requested again from its locator, without missing or
    duplicate rows.
    """
    with proxy_to(org.http_url) as proxy:
        reader = OrgReader(Sessions(org, proxy.url), timings=QUICK)
        first = reader.jobs.results(job.id, file, columns=COLUMNS, max_records=5000)
        proxy.cuts = [(RESULTS, passing), (RESULTS, 2 * passing)]
        page = reader.jobs.results(
            job.id, file, columns=COLUMNS, locator=first.next_locator, max_records=5000
        )
        assert names(page) == [f"order {number}" for number in range(5001, 10_001)]
        assert not proxy.cuts
        asked = [line for line in proxy.passed if "/results?" in line]
        assert len(asked) == 4
        assert asked[1] == asked[2] == asked[3]
        assert reader.calls == 4


def test_retries_of_a_page_are_limited(org, job, file):
    """If the connection breaks every time, a retryable error is raised after the configured number
    of attempts.
    """
    with proxy_to(org.http_url) as proxy:
        reader = OrgReader(Sessions(org, proxy.url), timings=QUICK)
        proxy.cuts = [(RESULTS, 5000)] * 10
        with pytest.raises(StreamUnavailableError) as caught:
            reader.jobs.results(job.id, file, columns=COLUMNS)
        assert caught.value.retryable
        assert len(proxy.passed) == QUICK.attempts


def test_session_expiring_between_pages_is_renewed(org, job, file):
    """If the session expires between two pages, it is renewed once, and the next page is read."""
    sessions = Sessions(org)
    reader = OrgReader(sessions, timings=QUICK)
    first = reader.jobs.results(job.id, file, columns=COLUMNS, max_records=10_000)
    sessions.expire()
    page = reader.jobs.results(job.id, file, columns=COLUMNS, locator=first.next_locator)
    assert names(page)[0] == "order 10001"
    assert sessions.renewals == 1


def test_special_characters_in_values_are_preserved(org, file):
    """Quotes, commas, line breaks and non-ASCII text are preserved; an empty field is an empty
    string, and a result may be empty.
    """
    reader, user = reader_of(org), org.accounts.holder("")
    texts = ['say "no"', "a,b", "two\nlines", "two\r\nlines", '"', '""\n"",', "żółw 🐢", " x "]
    for text in texts:
        org.records.create("Contact", {"LastName": "Texts", "Description": text}, user)
    where = "WHERE LastName = 'Texts'"
    job = completed_job(reader, f"SELECT Id, Email, Description FROM Contact {where}")
    page = reader.jobs.results(job.id, file, columns=["Id", "Email", "Description"])
    rows = list(page.rows())
    assert [row[2] for row in rows] == texts
    assert {row[1] for row in rows} == {""}
    assert page.records == len(texts)
    empty = completed_job(reader, f"SELECT Id FROM Contact {where} AND Email = 'x@y.z'")
    none = reader.jobs.results(empty.id, file, columns=["Id"])
    assert (list(none.rows()), none.records, none.next_locator) == ([], 0, None)


def test_deleted_records_are_read_only_with_all_rows(org, file):
    """A deleted record is read, with IsDeleted set to true, only if the job has `all_rows`."""
    reader, user = reader_of(org), org.accounts.holder("")
    gone = org.records.create("Opportunity", {"Name": "gone", "StageName": "Prospecting",
        "CloseDate": "2026-01-01"}, user)  # fmt: skip
    org.records.delete("Opportunity", gone, user)
    soql = "SELECT Id, IsDeleted FROM Opportunity WHERE Name = 'gone'"
    for every, rows in ((False, []), (True, [[gone, "true"]])):
        job = completed_job(reader, soql, all_rows=every)
        page = reader.jobs.results(job.id, file, columns=["Id", "IsDeleted"])
        assert list(page.rows()) == rows


def test_missing_job_raises_read_expired_error(org, file):
    """Any use of a job that no longer exists raises `ReadExpiredError`, which says to start the
    read again.

    Deleting the job again succeeds.
    """
    reader = reader_of(org)
    job = completed_job(reader, "SELECT Id FROM Contact LIMIT 1")
    reader.jobs.delete(job.id)
    for use in (
        lambda: reader.jobs.get(job.id),
        lambda: reader.jobs.wait(job.id, deadline=0.0),
        lambda: reader.jobs.results(job.id, file, columns=COLUMNS),
        lambda: reader.jobs.abort(job.id),
    ):
        with pytest.raises(ReadExpiredError, match="start the read again") as caught:
            use()
        assert caught.value.status == 404
    reader.jobs.delete(job.id)  # deleting it twice is no error


def test_invalid_jobs_and_arguments_raise(org, reader, file):
    """A malformed query is refused when its job is created. A job that fails later, here because of
    a compound field, raises an error when it is waited for. Invalid arguments raise without a
    request.
    """
    with pytest.raises(RequestRefusedError, match="MALFORMED_QUERY") as caught:
        reader.jobs.create("SELECT FROM")
    assert caught.value.status == 400
    made = reader.jobs.create("SELECT BillingAddress FROM Account")
    with pytest.raises(RequestRefusedError, match="ended as Failed: FUNCTIONALITY_NOT_ENABLED"):
        reader.jobs.wait(made.id, deadline=time.monotonic() + PATIENCE)
    before = reader.calls
    with pytest.raises(LocalProtocolError, match="not a valid id for a job"):
        reader.jobs.results("../750", file, columns=["Id"])
    with pytest.raises(LocalProtocolError, match="max_records must be at least 1"):
        reader.jobs.results(JOB, file, columns=["Id"], max_records=0)
    assert reader.calls == before


def test_job_can_be_aborted(told):
    """Aborting sends the state "Aborted", and waiting for an aborted job raises an error."""
    host, reader = told(lambda request: job_response("Aborted"))
    assert reader.jobs.abort(JOB).has_ended
    (request,) = host.requests
    assert (request.method, request.body) == ("PATCH", b'{"state": "Aborted"}')
    with pytest.raises(RequestRefusedError, match="ended as Aborted"):
        reader.jobs.wait(JOB, deadline=0.0)


def job_response(state, **more):
    """Return the org's response for a job in the given state, with any additional fields."""
    found = {"id": JOB, "object": "Account", "state": state, "createdDate": "2026-01-01T00:00:00"}
    return Reply(200, {**found, **more})


def test_job_is_polled_with_growing_delays(told):
    """Delays between polls double up to `poll_max`, to save API calls, and the last poll is at the
    deadline.
    """
    now, slept, seen = [100.0], [], []

    def sleep(seconds):
        slept.append(seconds)
        now[0] += seconds

    states = iter(["UploadComplete", *["InProgress"] * 20])
    timings = RestTimings(poll_initial=1.0, poll_max=8.0)
    _, reader = told(
        lambda request: job_response(next(states), numberRecordsProcessed=7),
        timings=timings,
        sleep=sleep,
    )
    with pytest.raises(StreamUnavailableError, match="InProgress after 7 records") as caught:
        reader.jobs.wait(JOB, deadline=130.0, clock=lambda: now[0], progress=seen.append)
    assert caught.value.retryable
    assert slept == [1.0, 2.0, 4.0, 8.0, 8.0, 7.0]
    assert [job.state for job in seen] == ["UploadComplete", *["InProgress"] * 5]


# Invalid pages.


def page_of(body, records, locator="null", **headers):
    """Return the org's reply for a page with the given CSV text, number of rows, and locator of the
    next page.
    """
    return Reply(
        200, body, {"Sforce-NumberOfRecords": str(records), "Sforce-Locator": locator, **headers}
    )


def test_later_pages_may_lack_the_header_line(told, file):
    """Later pages are read both with and without a header line, because reports about the service
    differ.
    """
    pages = iter(
        [page_of('"Id"\n"1"\n"2"\n', 2, "Mg"), page_of('"3"\n', 1, "Mw"), page_of('"ID"\n"4"\n', 1)]
    )
    host, reader = told(lambda request: next(pages))
    found, locator = [], None
    for has_header in (True, False, True):
        page = reader.jobs.results(JOB, file, columns=["Id"], locator=locator)
        assert page.has_header is has_header
        found += page.rows()
        locator = page.next_locator
    assert (found, locator) == ([["1"], ["2"], ["3"], ["4"]], None)
    assert ["locator=" in request.path for request in host.requests] == [False, True, True]
    assert "locator=Mw" in host.requests[2].path


def test_page_with_other_columns_is_rejected(told, file):
    """A page whose header differs from the requested columns raises an error, so that no value ends
    up in the wrong column.
    """
    _, reader = told(lambda request: page_of('"Name","Id"\n"x","1"\n', 1))
    with pytest.raises(RemoteProtocolError, match="do not match the requested columns Id, Name"):
        reader.jobs.results(JOB, file, columns=["Id", "Name"])


@pytest.mark.parametrize("cut", ['"Id"\n"1"\n', '"Id"\n"1"\n"', '"Id"\n"1"\n"2', '"1"\n"2', ""])
def test_truncated_page_is_fetched_again(told, file, cut):
    """A page with fewer rows than announced, or with an open quote, is requested again even if the
    response ended normally.
    """
    pages = iter([page_of(cut, 2), page_of('"Id"\n"1"\n"2"\n', 2)])
    host, reader = told(lambda request: next(pages))
    assert list(reader.jobs.results(JOB, file, columns=["Id"]).rows()) == [["1"], ["2"]]
    assert len(host.requests) == 2


@pytest.mark.parametrize("reply", [Reply(200, '"Id"\n"1"\n'), page_of("<html>", "many")])
def test_page_without_its_headers_is_fetched_again(told, file, reply):
    """A page whose headers are incomplete, as after a broken connection, is requested again. If
    they are missing every time, the error names a proxy as the cause.
    """
    replies = iter([reply, page_of('"Id"\n"1"\n', 1)])
    _, reader = told(lambda request: next(replies))
    assert list(reader.jobs.results(JOB, file, columns=["Id"]).rows()) == [["1"]]
    host, reader = told(lambda request: reply)
    with pytest.raises(StreamUnavailableError, match="a proxy removes headers"):
        reader.jobs.results(JOB, file, columns=["Id"])
    assert len(host.requests) == QUICK.attempts


@pytest.mark.parametrize(
    ("reply", "error", "words"),
    [
        (Reply(204), LocalProtocolError, "wait until it is complete"),
        (
            Reply(302, "", {"Location": "https://elsewhere.example"}),
            RemoteProtocolError,
            "redirect",
        ),
        (Reply(409, [{"errorCode": "X", "message": "other version"}]), RequestRefusedError, "409"),
    ],
)
def test_response_that_is_not_a_page_raises(told, file, reply, error, words):
    """A response that is not a page raises an error rather than counting as an empty page, and is
    not requested again.
    """
    host, reader = told(lambda request: reply)
    with pytest.raises(error, match=words):
        reader.jobs.results(JOB, file, columns=["Id"])
    assert len(host.requests) == 1


@pytest.mark.parametrize(
    "body",
    [
        b'"Id"\n"1","2"\n',
        b'"Id"\n"1\xff"\n',
        b'"Id"\n"1"x\n',
    ],
    ids=["too many values", "no UTF-8", "text behind quotes"],
)
def test_invalid_csv_raises(told, file, body):
    """A row with too many values, invalid UTF-8 or text after a quoted value raises an error."""
    _, reader = told(lambda request: page_of(body, 1))
    with pytest.raises(RemoteProtocolError):
        list(reader.jobs.results(JOB, file, columns=["Id"]).rows())


@pytest.mark.parametrize(
    "body",
    [{}, [], None, 5, {"id": JOB}, {"id": JOB, "object": "A", "state": "Odd", "createdDate": "x"}],
)
def test_response_that_is_not_a_job_raises(told, body):
    """A response without the fields of a job, or with an unknown state, raises an error."""
    _, reader = told(lambda request: Reply(200, json.dumps(body)))
    with pytest.raises(RemoteProtocolError):
        reader.jobs.get(JOB)


def test_full_disk_raises_without_a_retry(org, job, tmp_path):
    """If the page's file can't be written, its `OSError` is raised and the page is not requested
    again.
    """
    reader = reader_of(org)
    with open("/dev/full", "r+b", buffering=0) as full, pytest.raises(OSError, match="No space"):
        reader.jobs.results(job.id, NoSeek(full), columns=COLUMNS)
    assert reader.calls == 1


class NoSeek(io.RawIOBase):
    """A file on a full disk, where writes fail but seeking and truncation appear to succeed."""

    def __init__(self, full):
        self._full = full

    def seek(self, *_arguments):
        return 0

    def truncate(self, *_arguments):
        return 0

    def write(self, data):
        return self._full.write(data)


def test_line_counter_ignores_how_data_is_split():
    """Line breaks within quotes are not counted, wherever the data is split.

    The data is random, and the seed is printed.
    """
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    for _ in range(200):
        rows = [
            ["".join(rng.choices('ab",\n\r', k=rng.randrange(6))) for _ in range(3)]
            for _ in range(rng.randrange(8))
        ]
        text = io.StringIO()
        csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows(rows)
        data = text.getvalue().encode()
        if rows and rng.random() < 0.5:
            data = data[:-1]  # remove the last line end
        counter, at = LineCounter(), 0
        while at < len(data):
            size = rng.randrange(1, 7)
            counter.add(data[at : at + size])
            at += size
        assert counter.lines == len(rows), data


@pytest.mark.slow
def test_reading_a_million_rows_uses_constant_memory(tmp_path):
    """Neither pages nor rows accumulate: reading a million rows needs less than 30 MB of additional
    memory.
    """
    with EmulatorServer(tmp_path / "org") as emulator:
        fill_orders(emulator, 1_000_000)
        session = Session(emulator.access_token, emulator.instance_url, emulator.tenant_id)
        reader = OrgReader(session)
        columns = ["Id", "Name", "Quantity__c", "CreatedDate"]
        made = reader.jobs.create(f"SELECT {', '.join(columns)} FROM Order__c")
        job = reader.jobs.wait(made.id, deadline=time.monotonic() + 10 * PATIENCE)
        forget_peak()
        before, began, read = peak_mb(), time.monotonic(), 0
        with tempfile.TemporaryFile() as file:
            locator, ended = None, False
            while not ended:
                page = reader.jobs.results(job.id, file, columns=columns, locator=locator)
                locator, ended = page.next_locator, page.next_locator is None
                for row in page.rows():
                    read += 1
                    assert row[1] == f"order {read}"
        took, growth = time.monotonic() - began, peak_mb() - before
        print(f"{read} rows in {took:.1f} s, {growth:.1f} MB more at most, {reader.calls} calls")
        assert read == 1_000_000
        assert growth < 30.0  # includes the emulator in this process, which its own test measures
