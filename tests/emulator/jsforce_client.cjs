// Runs the unmodified jsforce: SOAP sign-in, identity, an event over REST, Tooling API, limits, and
// SOAP logout.
//   node jsforce_client.cjs URL
// Prints the results as a line of JSON.
const jsforce = require('jsforce');

async function main() {
  const connection = new jsforce.Connection({ loginUrl: process.argv[2], version: '60.0' });
  const user = await connection.login('user@example.com', 'emulator-password');
  const seen = { organization: user.organizationId };
  seen.identity = (await connection.identity()).organization_id;
  const made = await connection.sobject('Order_Event__e').create({ Order_Number__c: 'jsforce' });
  seen.published = made.success;
  const schema = await connection.request('/sobjects/Order_Event__e/eventSchema?payloadFormat=COMPACT');
  seen.schema = schema.name;
  const channels = await connection.tooling.query('SELECT Id, SelectedEntity FROM PlatformEventChannelMember');
  seen.selected = channels.records.map((row) => row.SelectedEntity);
  const channel = await connection.tooling.sobject('PlatformEventChannel').create({
    FullName: 'Js__chn', Metadata: { channelType: 'event', label: 'from jsforce' },
  });
  seen.channel = channel.success;
  seen.limit = (await connection.limits()).DailyDeliveredPlatformEvents.Max;
  const token = connection.accessToken;
  await connection.logout();
  const again = new jsforce.Connection({ instanceUrl: process.argv[2], accessToken: token });
  seen.afterLogout = await again.identity().catch((error) => error.errorCode || error.name);
  console.log(JSON.stringify(seen));
}

main().catch((error) => { console.error(error); process.exit(1); });
