// Runs the unmodified jsforce: SOAP sign-in, single records and collections, queries, Bulk API 2.0.
//   node jsforce_records.cjs URL
// Prints the results as a line of JSON.
const jsforce = require('jsforce');

const KIND = 'Order__c';

async function main() {
  const connection = new jsforce.Connection({ loginUrl: process.argv[2], version: '60.0' });
  await connection.login('user@example.com', 'emulator-password');
  const seen = {};
  const orders = connection.sobject(KIND);
  const made = await orders.create({ Name: 'one', Quantity__c: 2, Price__c: 1.5 });
  seen.created = made.success;
  await orders.update({ Id: made.id, Quantity__c: 4 });
  seen.total = (await orders.retrieve(made.id)).Total__c;
  seen.upserted = (await orders.upsert({ External_Id__c: 'x', Name: 'two' }, 'External_Id__c')).created;
  seen.again = (await orders.upsert({ External_Id__c: 'x', Name: 'three' }, 'External_Id__c')).success;
  const many = await orders.create([{ Name: 'a' }, { Name: 'b' }, {}]);
  seen.many = many.map((one) => one.success);
  seen.refused = await orders.create({}).catch((error) => error.errorCode);
  const found = await connection.query(`SELECT Name FROM ${KIND} WHERE Name IN ('a', 'b') ORDER BY Name`);
  seen.found = found.records.map((row) => row.Name);
  seen.fields = (await orders.describe()).fields.length > 10;
  seen.objects = (await connection.describeGlobal()).sobjects.map((one) => one.name);

  connection.bulk2.pollInterval = 200;
  connection.bulk2.pollTimeout = 60000;
  const input = Array.from({ length: 500 }, (_, n) => ({ Name: `bulk ${n}`, Quantity__c: n }));
  const loaded = await connection.bulk2.loadAndWaitForResults({ object: KIND, operation: 'insert', input });
  seen.loaded = loaded.successfulResults.length;
  seen.failed = loaded.failedResults.length;
  const headers = { 'Sforce-Query-Options': 'batchSize=200' };
  const owned = await connection.query(
    `SELECT Id, Owner.Username FROM ${KIND} WHERE Name LIKE 'bulk%'`,
    { autoFetch: true, maxFetch: 1000, headers },
  );
  seen.fetched = owned.records.length;
  seen.owners = [...new Set(owned.records.map((row) => row.Owner.Username))];
  const counted = await connection.query(`SELECT COUNT(Id) n FROM ${KIND} GROUP BY OwnerId`);
  seen.counted = counted.records.map((row) => row.n);
  const stream = await connection.bulk2.query(`SELECT Id, Name FROM ${KIND} WHERE Name LIKE 'bulk%'`);
  seen.read = (await stream.toArray()).length;
  const gone = await orders.destroy(many.filter((one) => one.success).map((one) => one.id));
  seen.deleted = gone.map((one) => one.success);
  await orders.destroy(made.id);
  seen.afterwards = await orders.retrieve(made.id).catch((error) => error.errorCode);
  console.log(JSON.stringify(seen));
}

main().catch((error) => { console.error(error); process.exit(1); });
