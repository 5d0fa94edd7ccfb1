"""Counts and digests of the 171 MMLU files: 57 subjects, three splits each.

Facts about the files, kept apart so that `mmlu` reads in one sitting.
"""

from __future__ import annotations

COUNTED = {
    "abstract_algebra": (
        (5, "bd8c73f3c75bea9db82d281d9da6949cea687b987dba24a142c638e758046624"),
        (11, "ab0c6d19c4523969ec7b553ed49adecdb9cc00decc76c26c56c42ba198d8047c"),
        (100, "4be89c0fb1d2419722e88880f6da3da95750367185ecd36f6492a6f74785cf64"),
    ),
    "anatomy": (
        (5, "0985685cf5ab13ccc1629f03a1308a9add8767582ffeb195b68b18c3415c9993"),
        (14, "09e9959486ebf3643e4ecbf173a77b029c6f08665ab8f89daf99399956f26b8e"),
        (135, "966dfd5c4579885ebdb8c05d6754ae5834f672632586d8595be3c0f9360e6f4e"),
    ),
    "astronomy": (
        (5, "bb03eca519a3fbc04017dc4783635763ac928f0811ce6243dbcbf0d526dbe1e3"),
        (16, "3dbe51f827890dd079e04c8ab024c5a2a7829033cd16913744af99f7b3a46328"),
        (152, "87c9c3cb5a55395c70dd9ed521dd7d2629fd4ff236c5ab647102e007f52a9341"),
    ),
    "business_ethics": (
        (5, "7cd487e4ba7d9fe423bcc259ad852e963dc370629b8d61881b61ed0ae84c0b46"),
        (11, "929daf023cce06fa7558595ff8c329a3c9211693f8a46977997435da52876cc3"),
        (100, "cd3fc3a85a34cb17e6c5b2fb68ea61e7800b31120d92934019f1e17f4832fbd4"),
    ),
    "clinical_knowledge": (
        (5, "30f851e53e0aa03178f705195450929ac6030c6bf629457f4ca250aff7515b65"),
        (29, "aa4a98fac4cb6c0ed219d44ef46a6aa9e8d56b0a62046bb220b836dbee4ff6a7"),
        (265, "134f919bb28f3cad6789078ede5fbce8c8aebf563747675c855420786f88157b"),
    ),
    "college_biology": (
        (5, "31f4ae0707ba3f742e0d5546ff970949be8a05e217921fe87b1814d6a0ab8184"),
        (16, "f624eaf75ee2add75a9f2b189bb703e0a2591981d45c60bb5f9dcd9bfe168456"),
        (144, "e1204cb9d19887ea266145f038b5d4cc1fbc33d7efce186259c4ecca1cbe3119"),
    ),
    "college_chemistry": (
        (5, "9ba27ba571b8ad40d35a2a88a60acf434ca5f37962c2eba8f9d0aa89edb4c1c7"),
        (8, "b44a405aa3f54ad4cb17a68b71c647478c9b407a3570924f08bb581d1b711ae9"),
        (100, "4d61d7887f845b887c52ac928b6dffdcf2468d79f3d0fbb4d1731092a51d2552"),
    ),
    "college_computer_science": (
        (5, "fc1a43187cd68390d663e0a1849688b13a4cd75ab17616558f4e584a4a8ae2bd"),
        (11, "4f7a08808c39218f0a8a8b945cadcc40dbf3d254962e620f7dccdea8a0596259"),
        (100, "d53a1d0d1c4362dacf92a4ff1d6a755beb5a87f24a7301c3c4391fcacc6530b4"),
    ),
    "college_mathematics": (
        (5, "27731ee1402e720ee01ad6fa6a969a0d0978a0e9b4c385d328a61869a43f321f"),
        (11, "12621b0f192fe8773cac843c5bdc4777cc81d66b31c41188a3096e20dde143f8"),
        (100, "8b5bef14d4209c7918eaf947e4f12a5ae9470567722d8ba9761302d733e8ac71"),
    ),
    "college_medicine": (
        (5, "63928a944fda769d7e52a3a4549d4f37f094896e65e7db35029261e1ae79909b"),
        (22, "6f9b34a756f70117d73f543017bd644a48a8d92d5262a46a45b89e0e4bcfca14"),
        (173, "9c533cfff89edaa317b2e79bbabcdd5e2e522e019679cb4a6475e5f2a1861b1e"),
    ),
    "college_physics": (
        (5, "6e043d6c566091c5ad1d8bc1d002900e1aa0bff114f98d5e3f2e4f645efce100"),
        (11, "55c80f8fdd225c5ff57ab952d583fa5f20ac719e2432e9062fd5fb00e4abe42e"),
        (102, "079c3696eda22c13b0472de245c7bb4918315b59481964109a4f65d2a35b4243"),
    ),
    "computer_security": (
        (5, "09e276300dbd2d07906dbe4ff82aabf45b9765f933eb7d0f35ea3ea97dee8020"),
        (11, "52faa1f86a4fa029d1953443ac636c359c9487efa1259d6212ea052018bc1582"),
        (100, "8e40f809858db9dd8585036b53984e570b6101f72be2214b85e979c7fafa307f"),
    ),
    "conceptual_physics": (
        (5, "5e65be1f6fdd82f4887e3747af790a747191b1b732dd2bea76306388d5ee3719"),
        (26, "dba647511d25b8defe1325268913d5b5853f3692af104176b88948bf89f06b95"),
        (235, "7b39a241bb20424fd2a4e0e37ce05d94865ffc44191d8be4063be0e973312256"),
    ),
    "econometrics": (
        (5, "7a01a925199c246decd0f1fc7a1b8dc28136b19d793e5b1e0d97142c118a2940"),
        (12, "062b8b3ae560c7bf1bde9fb64958949ce74093eec3761dc3227e6e777168aaf1"),
        (114, "10eb6b2d3a519a463872ef75902991b51ebf45865b29888e86d40228ace24029"),
    ),
    "electrical_engineering": (
        (5, "5aad11b1d1c8dc1a431c3e79a047cba56d691a60403ddffaf5fbd45e9c82bc0d"),
        (16, "31462254765b0525942d28da430d168dc012c64fd63140ee7c4d1cb42ebea6f5"),
        (145, "8b0d747a97cb2cbbd8926c8deb2cda6073da6d5d3cc099693aa7761be938f5e4"),
    ),
    "elementary_mathematics": (
        (5, "9aca9cd215b7c170020fd5f7db1c9c3d5cbf6df9ee7b970a4810649a87245011"),
        (41, "a3bfebe71e8dddf47d8eb36800ce97adfdca34c3a419941b36acf8bea8afe637"),
        (378, "4fed12775c545cef5e63911459808a528c451a9cb4ebb6855a2856aba8c5976e"),
    ),
    "formal_logic": (
        (5, "e4b579358ed4878f6c91bfea0ccc51efdd15a28401f86da9ee8f6c0af37cf36d"),
        (14, "306d64079d5a16516470cc059e8e313abc06ceeec8c1131af582e30fb6f21667"),
        (126, "bc2dc7373a664ae72e166dcbe3f7aaf1bb65b99f106f1831f335c53467f35248"),
    ),
    "global_facts": (
        (5, "ed0f3baddb866f4b1e1b4b400ef8c3c4deea717b1e72bb486a7ceab107425be8"),
        (10, "8bab486afff4f69b25fe96065f6a04e34375ae4bb1333cdd8a7d321e37d1f398"),
        (100, "74aeb1bd5df7ea0dccf0df1494c27c1696a37c087b58b1df8afb383af9f98bf8"),
    ),
    "high_school_biology": (
        (5, "6a200085c150794846d4bab43bb0e22ceec9f99576dfc25f5c5d8faa9595ae13"),
        (32, "0df930af26b8a7aaea0ceb61494413f0eecb686ab9731cb54df1bd524adbc978"),
        (310, "cfaba2b58b9714d2a6983a90bce17f14cc44cfc8195b20f8f65fef70d21331b9"),
    ),
    "high_school_chemistry": (
        (5, "1ba44aeea98ca22342b6525a3a9ebb62003b2a8289fa42d7c844e2139557ec5b"),
        (22, "ed0c2c9846a709332f679a14dc0f99b68d61b6161e7f86aaf9012a11f9617e3b"),
        (203, "489a59ae8acf88fe990c8d93fb842076984a38bf1ac3b385a5c26a7fbab88f91"),
    ),
    "high_school_computer_science": (
        (5, "5de3800dfbbfaa89050413a765deaf774fdb0611e370951383fb50fac774663e"),
        (9, "5e40b8773655e59293ecf6a3e60346f3dc23273a808e64a9cd415b8dd2d55381"),
        (100, "63806168fb0e5a72fe5bfb880f19816d8997e28d3f312c6b1831f4d40f432059"),
    ),
    "high_school_european_history": (
        (5, "a3677065cf51abc32901cdcf88ed64121f5595e3a5a67f86ae2570f866fe87c5"),
        (18, "82f2bbbf8148f3c7bfe8936278f8b3713686b5aa0bba43cadf4f59b7f8d192f2"),
        (165, "09983655452c3c40ba466050ec82252f02a235e5946734f4d73b73688fc9509b"),
    ),
    "high_school_geography": (
        (5, "e43fc27b9fa8b808773a2871007b39e012a1cc1ec902f85d85cc9c27cc12883d"),
        (22, "94444fda55747826967db7d9eb4a977edc34a64c0cdf2a8e865c382a8610d96b"),
        (198, "640040727498dcc16391924c28aacf1431eb6af0806d020e9a9483aba0f62a86"),
    ),
    "high_school_government_and_politics": (
        (5, "daf013a3eae04b5904e6a706cf0574df2c881e00d46a979cb34c6e2968ad1c90"),
        (21, "0fd2fd6ec975ed75c36eb6b826e4906ccdfa0275b915fa5b97499e6906a87777"),
        (193, "fbd7a89eb2c7806097e18b40950e44e0580e6f97cd151f01a216bb575c2d7903"),
    ),
    "high_school_macroeconomics": (
        (5, "23ed995071c47e627c4e6adbce63a9144920441abb7e69f8b4dfac5fdc4e402d"),
        (43, "3533d53f9f803657e25acd63fd98f2e24626008ff2fb793e2077feccd3d97f3c"),
        (390, "b25ae1f930d84aba999f85664b343f14be9c1f049770c4044a74fab4bd752419"),
    ),
    "high_school_mathematics": (
        (5, "d7401d5cbad5ae697bfa480e35d85de8ebf1232589a3c59b010782ee49cbe18c"),
        (29, "233f0811fb852a080f52c9e9cb3ce7cfb76f54661dd6f8fddfdac6b8e2a989b2"),
        (270, "fe8f7a154834bba30947401ba37ea6c7afdcfba82ddc341c79b5d3016991d290"),
    ),
    "high_school_microeconomics": (
        (5, "a409b422561f1fb02e6d1bc044657cfff7779b13146edfd937d2573423c2c49b"),
        (26, "51a6993ff0e2de9dcfc1c292efa4f4d983fd2397d5a28453c075272b7ba698f8"),
        (238, "a250cc4976654e479cecdb7b66046ce2412df3e5e1b9c3d145ed344eae9a2256"),
    ),
    "high_school_physics": (
        (5, "f676d5e2ef902a496784ee14a7110e9e09471985c60f11dfa0d6005cff73ef2e"),
        (17, "3861ace8d359bac8b8560481599212193d38120fc350082680d99ad2090eeb0e"),
        (151, "bc6aed09031156a97cd5a082ed6c9cd157196153a2bf1f3252457ae917317281"),
    ),
    "high_school_psychology": (
        (5, "aa1937558356d5e0dfc19a61791daf3519fc9772b57ac1f5f40868175bf3ace5"),
        (60, "785e5c3e90eafb1cbeca4fd6c8d4d061d0358f5c4cdc5a916c77aa038cec0f9a"),
        (545, "88c33b6b0ade567d07b8b5b074effdb52f31d773541fd71e86cb0d85a8daf7bf"),
    ),
    "high_school_statistics": (
        (5, "716804789456b88d5ae3868b6201fde4a8a3066e17ef51e9f095015f1e46a7f3"),
        (23, "ee65f842e44b0f9ada3919f64459c9b6a7aec190a26be00e037289279574d63c"),
        (216, "d62843d2fd084d6af1c8a0a6491d0aa642c34a7a68476605b9b3db5841e63d3f"),
    ),
    "high_school_us_history": (
        (5, "028b3c81c7be1138ad50b4afa1835773788e4557426a40abfaf132b11edab541"),
        (22, "b28f9c1a3382cb1ccba85b70ed1a3f555a37b01788cc0b96f8be08a72b29d8b7"),
        (204, "0338dea3b11881be53c2208ae8dbb571c792c0dca6f0b36a352147c0be81625e"),
    ),
    "high_school_world_history": (
        (5, "b6e87a14718b0415241dfe10dd86605de5b6e5995fa57580e9e2d7c56fe147a1"),
        (26, "7ba62c498d5bbe64423f6dca9db97b8240b87aee8a8559cafe5bca0e8b82fd4b"),
        (237, "7787343ae18e4e1ef833c8630c0c914c62f42c2f35d8b90f4bec2eecccfc161e"),
    ),
    "human_aging": (
        (5, "18f2a8dbce8f2f868fddd0d1b52ec4a0c3b3a4c8bebfe16dcbf1c72b257516c9"),
        (23, "5f4e2e4eebf704c4f19a6b54e58570b5f7d3928bedc807a24ff95dc296431de0"),
        (223, "01299d7e0ae4a8d082daeecc140445ce7393b464040bd810b0a60a370ae5502e"),
    ),
    "human_sexuality": (
        (5, "0da7f8f7aeb6d5a08f0413489aa5d5b84ff8ac971952ea66242762f779cb6794"),
        (12, "4b0b4680e3e595dc123bacacfc58c62d04797126e3f17eb1fe7221194f28eb06"),
        (131, "bad5d34f1a7d3c7ee2426b7842dc2e1acc9bd26d062d6d308025e02598d68a53"),
    ),
    "international_law": (
        (5, "6f7f1c0191c0bcfe195d0ed39942a605012967a04d855c6482dc7e7a9f95e4d8"),
        (13, "627a60c75899197670999963d6a2814b2bc7b4f7afc176a6bd665a0a2289a18a"),
        (121, "51b3a6d74cc84651b2355d2823c30d993015ddfe8ef39725da4e0442f29489fc"),
    ),
    "jurisprudence": (
        (5, "27533d974102031088bc5c47fc008538ab3d08ca75e127fb64ff04cdd1562da2"),
        (11, "a54d080420bbdb866fb18ff9eb6e8eb524df0dc1d25724997f73ac860fd3c8ec"),
        (108, "bf7a770aebfbdb181abc2c26ffd7a01ab31f93c7e2dfe6924c57c7bca4a0dff6"),
    ),
    "logical_fallacies": (
        (5, "4de026c2d116c381dcc1b65e91a28ba3d124398f920b0f3904ec5b641deb28f4"),
        (18, "35820dc5ddf469d073691f4634edb87955902dd4d90b45f62f848ccd88dc4817"),
        (163, "3fe8b48c74832525556455d49960cc0c3cff37496783348043ff69a1863c2244"),
    ),
    "machine_learning": (
        (5, "b785b8cb10376b45c2ec4d76b474e602ee6019fb4524a8e041b5c36f1dd70f5f"),
        (11, "23ea00a670424f7f7f54c3d32a04f470983234ffa7c6356eab8f4f7c6150fce4"),
        (112, "b1ba675ebf64d9435eb0af2a3bbba2d2ab1990063dab9eb26729d42f7dc3f3d5"),
    ),
    "management": (
        (5, "f75224958ab245d86c335d6886f8689247a9f83691ad63bb7ef3196641be9e52"),
        (11, "73f1407eedac9d6b02494b8e5292daa905993ed086883b56f4f0e52aea0e61bc"),
        (103, "4a535a11bb480a09a302e86d157ae2d33e054cfa00e4265fe300a9408b87ec6b"),
    ),
    "marketing": (
        (5, "15b3cf450ebc11e122886a5bad41e78260228259fa184eaa4ba566bdf37f0315"),
        (25, "521b52fd9be14088e8b3194088edd4de306e960d4a15558a0b0ea5f074ab158c"),
        (234, "ecf0ae0ae906194d033ca7d7746eaf201232eccb78ee24147e737473f751233d"),
    ),
    "medical_genetics": (
        (5, "70cd9ff940bef360693eeb4e05b5b8e53ad75a81d6b74a784222d4cae6dcb896"),
        (11, "03d44b759f35da638d7432bb7f050cc0bc5886497285980e91d387fe23478d6a"),
        (100, "b953f1682a60dae3759f7f4a8285bad61ee5733586eacb6624919cb0bf2317ef"),
    ),
    "miscellaneous": (
        (5, "72f74676c37fe477720d8b55e84517bd21daf1fe24f99dd33f1b0a636d31782e"),
        (86, "722b456242fc79fdbc20c2c2fac6ea1bc8ccbb50d03870546c7fdb2185302289"),
        (783, "6789731d4e22d61f9f81d0916cc75cc551e0186d700f86b2623297c43d3ab646"),
    ),
    "moral_disputes": (
        (5, "35ef4d90a4aa55bb5e708dcd233997449259259f1ba5872db36b35bf4b93a90e"),
        (38, "941826c9761dade3ebfb3a6a9c18e36994c3fcff2b10ffbe8830cf41b9e6cad0"),
        (346, "673f5e9054f55fc5e165a3ed01e1b13eb1ee5a3405055818b50532e05de9bfdd"),
    ),
    "moral_scenarios": (
        (5, "8f9133f2e0b2a1896af3c739011fa95e34fa1eead3733581cda8f7cac6b409e1"),
        (100, "ae6f1573f0b7ba824d0d367cca8d7a4c81c5144584a4bd35bf28e44e73e95beb"),
        (895, "96d8b5c6758022ac6dd63800734f1692343e5b984537e823fa1d176a9c7a5fa3"),
    ),
    "nutrition": (
        (5, "e686b5bde9db63aba83330ef93b8685b18240582eabb5078338d44a801b0c87f"),
        (33, "50a18a7a16ce33c9574b035a7f3229bfb03645562142b5d99fe932ba6599ff8c"),
        (306, "b94dfe54f9a7d5971d44b40815814473c218fade4340558bc905eb93c3320ba9"),
    ),
    "philosophy": (
        (5, "587be220837bbe089702aa27cda03fbf72a7b959a9a4425e70d598026614cf11"),
        (34, "e190e2653bf42254783e4ed04d8016e5aedcb050a4496d3de0d737f84c79755a"),
        (311, "a0f0c6fc9e4f08c04ff3a339996c4ed688a9fbe75d205fff4b9d3549fb49fa1e"),
    ),
    "prehistory": (
        (5, "fd6574b8bad497cdf4268274b02c7cdc9b65e4073cdc8a3d374967e4f89287a0"),
        (35, "08d0748aa24b77a3ca1e95897d6c77585c728b098a5a91501015552f1f331086"),
        (324, "8d44938332ea3d199cfa51a18ef69af972aa33ca4af7b5f5bc62e768a31f949a"),
    ),
    "professional_accounting": (
        (5, "efc070ed71676829c67497542e3571f50a868036a17f93d00a56a4f85767ae0d"),
        (31, "865b30e9a3c8dedbcedf9f50ac290571a729e1c7968485b203d328e55bbf6dca"),
        (282, "2d2f281b3d2834fd8ba7cfcba346630529765e33e40b3a045e4697b028ef01be"),
    ),
    "professional_law": (
        (5, "15d8589900ccf4725e1bad17837d48cc18c8bf033cd9b5d6bacf28a2a8f1064f"),
        (170, "175350a6b9a39a1f3118b3d700068f06ea1b59fa361d40f719fc3769c3e01601"),
        (1534, "6b123327d1f19b7e4c9d4ccc46cafe90ca2b9e9e6a486a77f7c573c05ce2be3a"),
    ),
    "professional_medicine": (
        (5, "486456d578890d4700dd8044ac236c8ac2ee3389e35fc81ac37529f4f4487785"),
        (31, "8ccce8d3ca49f2a8ff645a12151ec36f4d567b53bf146bcefcb44c993efd7392"),
        (272, "de74741286a585420a428590806e43dc7933cca559eb4be296759a501bfcc159"),
    ),
    "professional_psychology": (
        (5, "222e690db42dfb217a7c56a6ac693b73cf0168e344d75f28618c62ad9d2c0261"),
        (69, "ef9cac4327293305ab3becdd4e8bc7ddeb56c3e43766ef4c9b8f506a3a69107c"),
        (612, "8e4e3d2cf9b94cde0477b564410eddf769a739ac9a0e739ca1921b42e5066d0b"),
    ),
    "public_relations": (
        (5, "8895f665f4c696ae76d34210546d0ab4b21b79d2fd8534cd2e8002e8ed0969dc"),
        (12, "7acad9ec286d30324ecec4888789abf73903d8e3222cef8650e7f294310a7957"),
        (110, "832bae498e20d2e23cb95bf6563ac2f2353f47bfd40ec0ba312160234a5dc3d3"),
    ),
    "security_studies": (
        (5, "9b30f7e622250c2c0e5acc6f2cb73c13898e2d2791083f91cb7f8bc528b29281"),
        (27, "5287f8757b00302ebcfddfe6c510e06a21c3b697e17cdefe40dfe180a619c6ca"),
        (245, "ab7634702670ee0d5e98b852f5bcfad2821ff9a2e909d223de05422c948f6638"),
    ),
    "sociology": (
        (5, "2e2bb34b4cabdc50e2c43097d1cfe91560224f9e1224adc19a01e922d1c49414"),
        (22, "593bf2643ee40f288dc1104fe2994ec343e7db0f11970a9d449220daf4b38846"),
        (201, "f6c464600032aa2bb53294ad53217fbb650601eee206af947b3ce4c587ff5bed"),
    ),
    "us_foreign_policy": (
        (5, "3a9677a89fd67c3a891671a2a6a14ff69ab37bdd54fb687c2f8334c8a3fa1543"),
        (11, "c427b2d9da8929924583eb4d6a32956d112cb9c43448225833c0d581a25ca1df"),
        (100, "2821ee009a2b1b7d4adc5a212a0bad7fe05d377455de0fe0841beab8f00142e1"),
    ),
    "virology": (
        (5, "ff9e424e35b6bdd399cfeeca8b1d3de116079afb74acc786bdf9adc65090cabf"),
        (18, "bfd8a9560123c397d4697333b59e1230b4154c466c9361530381434e2c6fd401"),
        (166, "4355b9d79142da0e44a767a495a277733fd89ad67236cbbe3f42ff3a6d46b483"),
    ),
    "world_religions": (
        (5, "0d82b3905a08eaa97f9fa069bf2ec4720eb4e2ed875a226e7d00786688caa32d"),
        (19, "4352332375435709451e5782ede6700752db0b289602e572927d30ee0289125f"),
        (171, "3be96b2465419289c4fe0c8a0d003003facd243c8982c6daafc6ac90a40bd507"),
    ),
}
"""Subject → (records, SHA-256) of dev, val and test, in this order."""
