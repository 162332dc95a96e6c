// Runs the unmodified node-sf-bulk2: inserts rows with a bulk job, and queries them in pages.
// Prints the results as JSON.
const { BulkAPI2 } = require("node-sf-bulk2");

const [url, token] = process.argv.slice(2);
const [SUCCESSFUL, FAILED] = [0, 1];

const ended = async (look) => {
  for (;;) {
    const job = await look();
    if (["JobComplete", "Failed", "Aborted"].includes(job.state)) return job;
    await new Promise((done) => setTimeout(done, 100));
  }
};

const lines = (csv) => csv.trimEnd().split("\n").length - 1;

const main = async () => {
  const bulk = new BulkAPI2({ accessToken: token, instanceUrl: url, apiVersion: "62.0" });

  const load = await bulk.createDataUploadJob({ object: "Order__c", operation: "insert" });
  const rows = Array.from({ length: 1500 }, (_, n) => `n${n},${n}\n`).join("");
  await bulk.uploadJobData(load.contentUrl, `Name,Quantity__c\n${rows},1\n`);
  await bulk.closeOrAbortJob(load.id, "UploadComplete");
  const loaded = await ended(() => bulk.getIngestJobInfo(load.id));

  const made = await bulk.submitBulkQueryJob({
    query: "SELECT Id, Name FROM Order__c",
    operation: "query",
  });
  await ended(() => bulk.getBulkQueryJobInfo(made.id));
  const sets = [];
  for (let locator; locator !== "null"; ) {
    const answer = await bulk.getBulkQueryResults(made.id, locator, 1000);
    sets.push(lines(answer.data));
    locator = answer.headers["sforce-locator"];
  }

  const seen = {
    loaded: loaded.state,
    processed: loaded.numberRecordsProcessed,
    successful: lines(await bulk.getResults(load.id, SUCCESSFUL)),
    failed: lines(await bulk.getResults(load.id, FAILED)),
    sets,
  };
  await bulk.deleteBulkQueryJob(made.id);
  await bulk.deleteIngestJob(load.id);
  seen.left = (await bulk.getAllIngestJobInfo()).records.length;
  console.log(JSON.stringify(seen));
};

main();
